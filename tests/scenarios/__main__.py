"""`python -m tests.scenarios FILE...`: replay scenarios and compare them with the kernel's log.

Prints a unified diff for each file that differs, and a summary. The status is 0 if all files that could be replayed
agree, 1 if one does not, 2 if one cannot be read.
"""

from __future__ import annotations

import argparse
import atexit
import faulthandler
import json
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sandbox.symbols.perfmap import perf_map
from tests.scenarios.differ import differences
from tests.scenarios.machine import NotSupported
from tests.scenarios.runner import replay
from tests.scenarios.script import ScriptError, parse

PASSED, DIFFERS, UNSUPPORTED, FAILED, UNREADABLE = "passed", "differs", "not supported", "failed", "unreadable"

PATIENCE = 30
"""Seconds for one file; then the process ends with a traceback of every thread."""


@dataclass(frozen=True)
class Outcome:
    """What became of one file. `detail`: the diff, what is not supported, or what was raised."""

    file: str
    verdict: str
    detail: str = ""


def outcome(path: Path) -> Outcome:
    """Replay one file."""
    try:
        script = parse(path.read_text())
        lines = replay(script)
    except NotSupported as missing:
        return Outcome(str(path), UNSUPPORTED, str(missing))
    except (ScriptError, UnicodeDecodeError, FileNotFoundError) as error:
        return Outcome(str(path), UNREADABLE, str(error))
    except Exception as error:
        return Outcome(str(path), FAILED, f"{type(error).__name__}: {error}")
    if script.expected is None:
        return Outcome(str(path), PASSED, "\n".join(line.text for line in lines))
    diff = differences(lines, script.expected)
    return Outcome(str(path), DIFFERS if diff else PASSED, "\n".join(diff))


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay the files that are named on the command line; the exit status."""
    options = _parser().parse_args(arguments)
    atexit.register(perf_map.path.unlink, missing_ok=True)
    faulthandler.enable()
    # Not dump_traceback_later(): its thread blocks SIGTRAP, and each change of probes would wait until that is certain.
    faulthandler.register(signal.SIGALRM, all_threads=True, chain=True)
    counts: Counter[str] = Counter()
    for path in options.files:
        signal.alarm(PATIENCE)
        result = outcome(path)
        signal.alarm(0)
        counts[result.verdict] += 1
        print(json.dumps(asdict(result)) + "\n" if options.json else _told(result), end="", flush=True)
    if not options.json:
        print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 2 if counts[UNREADABLE] else int(bool(counts[DIFFERS] or counts[FAILED]))


def _told(result: Outcome) -> str:
    """What is printed of an outcome: nothing if it passed and there is nothing to show."""
    if not result.detail:
        return ""
    head = result.file if result.verdict == PASSED else f"{result.file}: {result.verdict}:"
    separator = "\n" if result.verdict in (PASSED, DIFFERS) else " "
    return f"{head}{separator}{result.detail}\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a scenario, with or without a log")
    parser.add_argument("--json", action="store_true", help="one JSON object per file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
