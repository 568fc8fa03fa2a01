"""Matching functions by patterns: which can be probed, and why the others cannot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fprobe.cli.console import count, progress_line
from fprobe.cli.failure import FAILED, Failure
from ftrace.core.sites.locations import Skipped
from sandbox.process.near import did_you_mean
from sandbox.process.once import cached_property

if TYPE_CHECKING:
    from fprobe.attachment import Attachment
    from ftrace.core.sites.detoured import DetouredBlock
    from sandbox.loading.module import Module
    from sandbox.symbols.table import Symbol


class Site(NamedTuple):
    """A function that can be probed, and the address of its stub."""

    symbol: Symbol
    address: int


@dataclass
class MatchedFunctions:
    """The functions that patterns select."""

    sites: list[Site] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def matched(self) -> int:
        """The number of matched functions."""
        return len(self.sites) + len(self.skipped)

    @property
    def described(self) -> str:
        """How many functions of which images can be probed: `3 functions of [demo], [libz.so.1]`."""
        images = list(dict.fromkeys(f"[{site.symbol.module}]" for site in self.sites))
        more = f" and {len(images) - 3} more" if len(images) > 4 else ""
        return f"{count(len(self.sites), 'function')} of {', '.join(images[: 3 if more else 4])}{more}"

    @cached_property
    def names(self) -> dict[int, str]:
        """The readable names of the functions by the addresses of their stubs, in full where several have the same."""
        from sandbox.symbols.readable import distinct

        shown = distinct(site.symbol.name for site in self.sites)
        return {site.address: shown[site.symbol.name] for site in self.sites}

    @property
    def addresses(self) -> list[int]:
        """The addresses of the stubs."""
        return [site.address for site in self.sites]


def match(
    module: Module, patterns: Sequence[str], exclude: Sequence[str] = (), notrace: Sequence[str] = ()
) -> MatchedFunctions:
    """The functions that match any of `patterns` and none of `exclude`; a pattern with a leading `!` excludes, too.

    `notrace`: the functions named by --notrace. Raises Failure for a pattern that matches nothing.
    """
    meant: dict[int, Symbol] = {}
    of_images = _of_images([pattern for pattern in (*patterns, *exclude) if names_image(pattern)], exclude)
    patterns, exclude = ([pattern for pattern in some if not names_image(pattern)] for some in (patterns, exclude))
    for pattern in patterns:
        selected = _selected(module, pattern, "no function of {module} matches {pattern!r}")
        meant = _without(meant, selected) if pattern.startswith("!") else meant | selected
    for pattern in exclude:
        meant = _without(meant, _selected(module, pattern, "--exclude {pattern!r} matches no function of {module}"))
    found = MatchedFunctions(of_images.sites, of_images.skipped)
    refusals = Refusals(module, notrace)
    for symbol in meant.values():
        reason = refusals.reason(symbol)
        if reason:
            found.skipped.append(Skipped(symbol.readable, reason))
        else:
            found.sites.append(Site(symbol, refusals.sites[symbol.address]))
    return found


def _of_images(patterns: Sequence[str], exclude: Sequence[str]) -> MatchedFunctions:
    """The functions selected by patterns that name images: `libz:inflate*`."""
    sites: dict[int, Site] = {}
    skipped: dict[Skipped, None] = {}
    for pattern in patterns:
        found = match_image(pattern.removeprefix("!"))
        if pattern.startswith("!") or pattern in exclude:
            sites = {site: sites[site] for site in sites if site not in found.addresses}
        else:
            sites |= {site.address: site for site in found.sites}
            skipped |= dict.fromkeys(found.skipped)
    return MatchedFunctions(list(sites.values()), list(skipped))


def match_or_fail(
    module: Module, patterns: Sequence[str], exclude: Sequence[str] = (), notrace: Sequence[str] = ()
) -> MatchedFunctions:
    """Like `match`. Raises Failure also if none of the functions can be probed, with the reasons."""
    found = match(module, patterns, exclude, notrace)
    if not found.matched:
        raise Failure(f"every function of [{module.name}] that matches is excluded; nothing is left to probe")
    if not found.sites:
        reasons = ", ".join(f"{name} ({reason})" for name, reason in found.skipped[:10])
        raise Failure(f"no function that matches can be probed: {reasons}{', ...' if len(found.skipped) > 10 else ''}")
    return found


def symbols_of(module: Module, pattern: str) -> list[Symbol]:
    """The functions that a name or a glob matches; any name of a function will do. Raises Failure if there is none."""
    if names_image(pattern):
        return symbols_of_image(pattern)
    if pattern in module:
        return [module.symbol(pattern)]
    return list(_selected(module, pattern, "no function of {module} matches {pattern!r}").values())


def _selected(module: Module, text: str, complaint: str) -> dict[int, Symbol]:
    """Address -> function, for the functions that match one pattern; one with several names counts once."""
    from ftrace.core.filters.image_functions import whole
    from ftrace.core.glob import PatternKind, index_of, parse, select

    pattern = parse(text)
    if pattern.kind is PatternKind.INDEX:
        wanted = index_of(pattern)
        symbols = module.site_functions[wanted : wanted + 1] if wanted >= 0 else []
    else:
        names = [symbol.name for symbol in module.functions]
        chosen = bin(select(pattern, names))[:1:-1].ljust(len(names), "0")[: len(names)]
        symbols = whole(text, [symbol for symbol, bit in zip(module.functions, chosen, strict=True) if bit == "1"])
    if not symbols:
        message = complaint.format(pattern=text, module=f"[{module.name}]")
        raise Failure(message + _near(text, module))
    return _once(symbols)


def _near(text: str, module: Module) -> str:
    """Similar names: of the module or, if it has none, of libraries."""
    from fprobe.cli.habits import is_program, of_program
    from sandbox.images.near_misses import near_misses
    from sandbox.symbols.names import name_of_python

    if is_program(text):
        return f"; {text} is a file: {of_program(text, click.get_current_context().info_name or '')}"
    if name_of_python(text):
        return near_misses(text)
    return did_you_mean(text.strip("*"), (symbol.readable for symbol in module.functions)) or near_misses(text)


def _without(some: dict[int, Symbol], others: dict[int, Symbol]) -> dict[int, Symbol]:
    return {address: symbol for address, symbol in some.items() if address not in others}


def _once(symbols: Sequence[Symbol]) -> dict[int, Symbol]:
    """Address -> symbol. Of several symbols at one address, the one that a programmer is likely to have written."""
    found: dict[int, Symbol] = {}
    for symbol in symbols:
        before = found.get(symbol.address)
        if before is None or ("." in before.name and "." not in symbol.name):
            found[symbol.address] = symbol
    return found


class Refusals:
    """Knows which functions of a module cannot be probed. `sites`: address of a function -> address of its stub."""

    def __init__(self, module: Module, notrace: Sequence[str] = ()) -> None:
        owners = module.site_functions
        self.sites = {symbol.address: site for site, symbol in zip(module.sites, owners, strict=True)}
        self._stubless = module.site_kind == "none"
        self._notrace = {*module.functions_with("notrace"), *notrace}
        self._returns_twice = module.functions_with("returns_twice")
        self._scratch_taken = module.scratch_taken

    def reason(self, symbol: Symbol) -> str:
        """Why a function cannot be probed, in a few words; empty if it can."""
        if symbol.address not in self.sites:
            if symbol.name in self._notrace:
                return "notrace"
            return "compiled without stubs" if self._stubless else "no stub"
        if symbol.name in self._returns_twice:
            return "returns twice"
        return "has an argument in r10 or r11" if symbol.name in self._scratch_taken else ""


def owner_of(symbol: Symbol) -> str:
    """What follows the name of a function where it is shown: ` [libz]` of a library, nothing of the program."""
    from sandbox.loading.module import loaded_modules

    return "" if not symbol.module or symbol.module in loaded_modules else f" [{module_of(symbol)}]"


def module_of(symbol: Symbol) -> str:
    """The module or library of a function as `fprobe run` shows it: `libz`."""
    from sandbox.loading.module import loaded_modules
    from sandbox.symbols.file_names import short_name

    return symbol.module if symbol.module in loaded_modules else short_name(symbol.module)


def names_image(pattern: str) -> bool:
    """Whether a pattern names an image, such as a library: `libz:inflate*`."""
    from sandbox.symbols.names import names_owner

    return names_owner(pattern)


def match_image(pattern: str) -> MatchedFunctions:
    """The functions that a pattern for an image matches. The library is loaded if necessary. Raises Failure if there are none."""
    from ftrace.core.entries.locate import locations_of
    from ftrace.core.filters.image_functions import find_functions

    load_library(pattern)
    try:
        with progress_line(lambda: f"reading the functions that match {pattern}"):
            meant = find_functions(pattern)
            resolution = locations_of(meant)
    except LookupError as error:
        raise Failure(str(error.args[0])) from None
    except OSError as error:
        raise Failure(f"{pattern}: {error.strerror or error}", FAILED) from None
    found = MatchedFunctions()
    asked = {each.function.address: each.function for each in meant}
    found.sites = [
        Site(asked.get(location.function.address, location.function), location.ip)
        for location in resolution.locations.each()
    ]
    found.skipped = list(resolution.skipped)
    return found


def symbols_of_image(pattern: str) -> list[Symbol]:
    """The functions that a pattern for an image matches, also those that cannot be probed. Raises Failure if there are none."""
    from ftrace.core.filters.image_functions import find_functions

    match_image(pattern)
    return [found.function for found in find_functions(pattern)]


def load_library(pattern: str) -> None:
    """Load the library that a pattern names, if it is not loaded and can be found."""
    import ctypes.util

    from sandbox.images.sources import images
    from sandbox.symbols.names import split_owner

    owner = split_owner(pattern.lstrip("!"))[0]
    if any(owner in image.names for image in images()) or any(special in owner for special in "*?["):
        return
    name = ctypes.util.find_library(owner.removeprefix("lib")) or owner
    try:
        ctypes.CDLL(name)
    except OSError:
        return  # `match_image` reports the error in more detail


def reason_in_image(symbol: Symbol) -> str:
    """Why a function that `match_image` has found cannot be probed; '' if it can."""
    from ftrace.core.entries.locate import locations_of
    from ftrace.core.filters.image_functions import ImageFunction
    from sandbox.images.sources import image_at

    image = image_at(symbol.address)
    skipped = locations_of([ImageFunction(image, symbol)]).skipped if image is not None else []
    return skipped[0].reason if skipped else ""


def detoured(symbol: Symbol) -> tuple[DetouredBlock, int]:
    """The location of a function that `match_image` has found. Raises LookupError if it has a stub instead of a detour."""
    from ftrace.core.sites.detoured import DetouredBlock
    from ftrace.core.tracer import tracer

    location = tracer().table.location(symbol.address)
    if location is None or not isinstance(location.block, DetouredBlock):
        raise LookupError(f"{symbol} has no detour")
    return location.block, location.position


@contextmanager
def attached(match: MatchedFunctions, **options: Any) -> Iterator[Attachment[Any]]:
    """Attach handlers to the functions of `match` inside the block; `options`: as for `fprobe.attach`.

    Raises Failure with exit code 1 if they cannot be patched.
    """
    import fprobe

    probe = fprobe.attach(match.addresses, **options)
    try:
        with progress_line(lambda: f"probing {count(len(match.sites), 'function')}"):
            probe.attach()
    except OSError as error:
        raise Failure(f"cannot attach: {error.strerror or error}", FAILED) from None
    try:
        yield probe
    finally:
        probe.detach()
