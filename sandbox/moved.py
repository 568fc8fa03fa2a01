"""Imports of modules that have moved: the error says where the module is now, and which of its names are public.

For one version after a move; then RENAMED is emptied. Nothing is searched unless an import of ours has failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from sandbox.lazy import exported

_ROOT = Path(__file__).parents[1]
_PACKAGES = ("fprobe", "ftrace", "kprobes", "sandbox")
RENAMED = {
    "fprobe.events.recorded": ("fprobe.recorded_events",),
    "fprobe.run.inside": ("fprobe.run.tracee",),
    "ftrace.filters.resolve": ("ftrace.core.filters.image_functions",),
    "ftrace.shown": ("ftrace.core.summary",),
    "ftrace.core.address_table": ("ftrace.core.runtime",),
    "kprobes.blacklist": ("kprobes.checks",),
    "kprobes.departures": ("kprobes.jit_unloading",),
    "kprobes.handlers.resolve": ("kprobes.handlers.roles", "kprobes.probe"),
    "kprobes.jump.optimize": ("kprobes.optimization", "kprobes.jump.choice"),
    "sandbox.abi.btf": ("sandbox.images.btf",),
    "sandbox.compile.rehearsal": ("sandbox.loading.trial_link",),
    "sandbox.images.jit": ("sandbox.images.jit_image",),
    "sandbox.jit": ("sandbox.images.jit_loading", "sandbox.images.jit_objects"),
    "sandbox.x86_64.heads": ("sandbox.native.x86_64.entry_bytes",),
    "sandbox.x86_64.integer_arguments": ("sandbox.abi.convention",),
}
"""Modules whose last name is another one now. Others are found by it."""


class MovedModules:
    """For sys.meta_path, behind the finders that find something."""

    @staticmethod
    def find_spec(name: str, *_path_and_target: object) -> None:
        """Raise ModuleNotFoundError with the new place if `name` is a module that has moved."""
        package, is_inside, _ = name.partition(".")
        if not is_inside or package not in _PACKAGES or not name.replace(".", "_").isidentifier():
            return
        if getattr(sys.modules.get(package), "__file__", None) != str(_ROOT / package / "__init__.py"):
            return  # a package of the program's
        homes = RENAMED.get(name) or tuple(_named_like(name))
        if homes:
            raise ModuleNotFoundError(f"No module named {name!r}: {_told(homes)}", name=name)


def _named_like(name: str) -> Iterator[str]:
    home, last = _ROOT / name.partition(".")[0], name.rpartition(".")[2]
    for found in sorted([*home.rglob(f"{last}.py"), *home.rglob(f"{last}/__init__.py")]):
        inside = found.relative_to(_ROOT)
        yield ".".join((inside.parent if inside.name == "__init__.py" else inside.with_suffix("")).parts)


def _told(homes: tuple[str, ...]) -> str:
    imports = [
        f"from {package} import {', '.join(names)}" for package in _PACKAGES if (names := _public(package, homes))
    ]
    return f"it is {' or '.join(homes)} now" + ("; its public names: " + "; ".join(imports) if imports else "")


def _public(package: str, homes: tuple[str, ...]) -> list[str]:
    stub = exported((_ROOT / package / "__init__.pyi").read_text())
    return [name for name, home in stub.items() if any(f"{home}.".startswith(f"{new}.") for new in homes)]


def install() -> None:
    """Add the finder behind all others, once."""
    if not any(isinstance(each, MovedModules) for each in sys.meta_path):
        sys.meta_path.append(MovedModules())
