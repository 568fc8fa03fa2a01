"""Lines of a report besides the counts: patterns that match nothing, why nothing was counted, processes that are not covered."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fprobe.run.session import PARTS

if TYPE_CHECKING:
    from fprobe.run.launcher.process import Process
    from fprobe.run.launcher.results import Results

_LISTED = 5
"""Functions listed as not probed; the others are only counted."""
_JIT_NAMES = frozenset({"jit", "numba", "perf"})
"""As in `sandbox.images.process_text`, which takes too long to import here."""
_LONGEST = 160
"""Characters of a command that are shown."""


def why_nothing(results: Results, told: frozenset[str] = frozenset()) -> str:
    """Why nothing was counted, as a sentence. `told`: causes that it does not repeat."""
    if results.status == signal.SIGINT and not results.is_probed:
        return "nothing was counted: the program was interrupted before it began"
    if not results.processes:
        return (
            "nothing was counted: the program did not start as a Python that can import fprobe"
            " (interrupted at once, or python -I, -E or -S?)"
        )
    if results.is_probed:
        passing = next((f", or no call passed {each.where!r}" for each in results.processes if each.where), "")
        causes = [f"no probed function was called{passing}{_probed(results)}", *unmatched(results)]
    else:
        causes = [*unmatched(results), *_refusals(results)] or ["the program ended before it could be probed"]
    causes = [each for each in causes if each not in told] or ["no function has a probe, as was said at the beginning"]
    return f"nothing was counted: {'; '.join(causes)}"


def conclusion(results: Results, *, is_empty: bool) -> Iterator[str]:
    """The last lines of a report: processes that are not covered, patterns that match nothing, why nothing was counted."""
    yield from not_covered(results)
    if is_empty:
        yield f"fprobe: {why_nothing(results, results.told)}"
    else:
        yield from (f"# {sentence}" for sentence in unmatched(results) if sentence not in results.told)


def unmatched(results: Results) -> list[str]:
    """A sentence for each pattern that matches nothing in any process."""
    matched = {pattern for process in results.processes for pattern in process.matched}
    reasons = {pattern: why for process in results.processes for pattern, why in process.waiting.items()}
    return list(dict.fromkeys(why for pattern, why in reasons.items() if pattern not in matched))


def _refusals(results: Results) -> Iterator[str]:
    """Reasons why functions that match are not probed."""
    if any(process.skipped for process in results.processes):
        yield "none of the functions that match can be probed; the reasons are above"
    if any(process.errors for process in results.processes):
        yield "the errors above prevented it"


def _probed(results: Results) -> str:
    """How many functions of which images have probes, in parentheses."""
    of_images: dict[str, set[str]] = {}
    for process in results.processes:
        for address in set[int]().union(*process.matched.values()):
            named = process.names.function(address)
            of_images.setdefault(named.library, set()).add(named.name)
    if not of_images:
        return ""
    counts = (
        f"{len(names):,} function{'s' * (len(names) != 1)} of {image}" for image, names in sorted(of_images.items())
    )
    copies = (
        ""
        if of_images.keys() <= _JIT_NAMES
        else "; a copy that is linked into Python or another library goes by its name"
    )
    return f" (probed: {', '.join(counts)}{copies})"


def troubles(process: Process, told: frozenset[str]) -> Iterator[str]:
    """Lines with a process's errors and remarks, and the functions that cannot be probed. `told`: what they leave out."""
    yield from (f"# {text}" for text in (*process.errors, *process.remarks) if text not in told)
    yield from (f"# not probed: {name}: {reason}" for name, reason in process.skipped[:_LISTED])
    if len(process.skipped) > _LISTED:
        yield f"# not probed: {len(process.skipped) - _LISTED:,} more functions; fprobe run --json lists them"


def not_covered(results: Results) -> Iterator[str]:
    """A line for each process that was started and is not covered."""
    for pid, (command, reason) in results.not_covered.items():
        yield f"# not covered: process {pid}: {shown_command(command)}{reason and f': {reason}'}"
    if results.uncounted:
        yield f"# not covered: {results.uncounted:,} more processes; one run counts at most {PARTS}"


def shown_command(words: Sequence[str]) -> str:
    """A command line without the program's directory, on one line and truncated."""
    line = shlex.join([word.rpartition("/")[2] for word in words[:1]] + list(words[1:])).replace("\n", "\\n")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
