"""Run tests without and with probes, library by library, and print a table: `make libraries`.

    python -m tests.libraries [LIBRARY[=TEST,...]...]

`PYTHON` chooses the interpreter: one with its package `test`, such as Debian's with libpython3.11-testsuite. The suite `numpy`
needs numpy, pytest and hypothesis, which are those of this environment if that is the same version of Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from tests.libraries import described
from tests.libraries.suites import NOT_RUN, SUITES, suite_called

_LIMIT = 7200
_JUMPS = ("jump", "punned jump", "jump over several instructions")
_HEADER = """\
| library | of the FDEs | functions | jumps | breakpoints | refused | hits | missed | CPython | tests | attach (s of CPU) |
|---|---|---|---|---|---|---|---|---|---|---|"""


def run(suite: str, *options: str) -> dict[str, Any]:
    """What one process reports. Raises CalledProcessError if it fails."""
    root, packages = Path(__file__).parents[2], sysconfig.get_paths()["platlib"]
    command = [os.environ.get("PYTHON", sys.executable), "-X", "faulthandler", "-m", "tests.libraries.probed"]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{packages}"}
    done = subprocess.run(
        [*command, suite, *options], env=environment, timeout=_LIMIT, check=True, stdout=subprocess.PIPE
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def described_functions(library: dict[str, Any]) -> dict[int, str]:
    """How each function that pyelftools finds is patched, or why it is not, by its address in the file."""
    starts = described.functions(Path(library["path"]))
    return {start: library["places"].get(str(start), "it is not among our functions") for start in starts}


def row(name: str, library: dict[str, Any], described: dict[int, str], outcome: str, python: str) -> str:
    """A line of the table. `python`: the version of the interpreter."""
    ways, functions = library["ways"], library["functions"]
    jumps = sum(ways.get(way, 0) for way in _JUMPS)
    as_jumps = sum(way in _JUMPS for way in described.values())
    counts = dict(library["counts"])
    hits = counts.pop("hits")
    cells = (
        name,
        f"{as_jumps:,} of {len(described):,} ({100 * as_jumps / len(described):.1f} %)",
        f"{functions:,}",
        f"{jumps:,} ({100 * jumps / functions:.1f} %)",
        ways.get("breakpoint", 0),
        len(library["skipped"]),
        f"{hits:,}",
        ", ".join(f"{cause} {count:,}" for cause, count in counts.items() if count) or 0,
        python,
        outcome,
        f"{library['attach_s']:.2f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def not_run(run: dict[str, Any]) -> dict[str, str]:
    """The modules of tests that could not be imported, and why."""
    return {name: what.removeprefix(NOT_RUN) for name, what in run["outcomes"].items() if what.startswith(NOT_RUN)}


def outcome(plain: dict[str, Any], probed: dict[str, Any]) -> str:
    """What the table says of the tests: how many there are, if all came out the same, and which could not be run."""
    absent = not_run(plain)
    if plain["outcomes"] != probed["outcomes"]:
        return "DIFFERENT"
    count = len(plain["outcomes"]) - len(absent)
    same = f"{count:,} the same" if count else "none"
    return f"{same}; not run: {', '.join(absent)}" if absent else same


def wrong(plain: dict[str, Any], probed: dict[str, Any]) -> list[str]:
    """What must not be: tests that were not run, or that called no probed function; other results; calls with a return node
    that have neither returned nor are under way.
    """
    found = [f"{name} was not run: {why}" for name, why in not_run(plain).items()]
    found += [
        f"{name}: {plain['outcomes'].get(name)} without, {probed['outcomes'].get(name)} with probes"
        for name in sorted({*plain["outcomes"], *probed["outcomes"]})
        if plain["outcomes"].get(name) != probed["outcomes"].get(name)
    ]
    pending, hits = probed["pending"], sum(library["counts"]["hits"] for library in probed["libraries"].values())
    if not probed["entered"] == hits == probed["left"] + len(pending):
        calls = f"{probed['entered']:,} calls, {hits:,} hits, {probed['left']:,} returns"
        found.append(f"{calls}; under way: {pending}")
    if not hits:
        found.append(
            f"no function of {', '.join(probed['libraries'])} was called: does this Python have its own copy inside?"
        )
    return found


def compare(suite: str) -> list[str]:
    """Run a suite without and with probes, and print its rows; what is wrong."""
    plain, probed = run(suite), run(suite, "probe")
    for name, library in probed["libraries"].items():
        described = described_functions(library)
        print(row(name, library, described, outcome(plain, probed), probed["python"]), flush=True)
        refused = dict(library["skipped"])
        refused |= {f"{name}+{start:#x}": way for start, way in described.items() if way not in _JUMPS}
        print("".join(f"  {function}: {why}\n" for function, why in refused.items()), end="", file=sys.stderr)
    print(f"  CPU time of the tests: {plain['tests_s']:.1f} s, probed {probed['tests_s']:.1f} s", file=sys.stderr)
    return [f"{suite}: {what}" for what in wrong(plain, probed)]


def main() -> int:
    suites = sys.argv[1:] or list(SUITES)
    for suite in suites:
        suite_called(suite)
    print(_HEADER)
    failures = [what for suite in suites for what in compare(suite)]
    print("\n".join(failures), file=sys.stderr)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
