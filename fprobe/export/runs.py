"""Reports and recordings as runs that can be compared: JSON of `stat` and `run`, folded stacks, trace.dat."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fprobe.report.difference import Measured, Run
from sandbox.process.printable import printable

_KINDS = "the JSON of fprobe run or fprobe stat, folded stacks, or a trace.dat"
_FOLDED = re.compile(r"(.+) (\d+)")
_NO_NUMBER = 1 << 64
"""What no count and no nanoseconds reach."""
_LONGEST = 40
_BEGINNING = 64
"""Bytes of a file that tell whether it may be one of ours."""
_MAGIC = b"\x17\x08Dtracing"


def runs_of(path: str) -> list[Run]:
    """The run in a file, or in each file of a directory, by name. Raises OSError, and ValueError for a file of another kind."""
    if Path(path).is_dir():
        files = sorted(each for each in Path(path).iterdir() if each.is_file() and not each.name.startswith("."))
        if not files:
            raise ValueError(f"{path}: there is no file in this directory; give {_KINDS}")
        return [_run_of(each) for each in files]
    return [_run_of(Path(path))]


def _text(value: Any) -> str:
    """A name in a file, such that a terminal and XML can have it. Raises TypeError if it is none."""
    if not isinstance(value, str) or not value:
        raise TypeError(f"{_shown(value)} is not a name")
    return printable(value)


def _number(value: Any) -> float:
    """A count or a time in a file. Raises TypeError if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _NO_NUMBER:
        raise TypeError(f"{_shown(value)} is not a count, nor a time")
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _run_of(path: Path) -> Run:
    with path.open("rb") as file:
        begun = file.peek(_BEGINNING)[:_BEGINNING]
        data = file.read() if begun.startswith(_MAGIC) or b"\0" not in begun else begun  # /dev/zero has no end
    if data.startswith(_MAGIC):
        return _of_trace(path)
    text = data.decode("utf-8", "replace")
    if text.lstrip().startswith("{"):
        try:
            return _of_json(str(path), json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path}: {_KINDS} is expected; in this JSON, {_fault(error)}") from None
    found = [_FOLDED.fullmatch(line) for line in text.splitlines()]
    if not found or None in found:
        raise ValueError(f"{path}: this is not {_KINDS}")
    return _of_stacks(str(path), (_folded(path, *each.groups()) for each in found if each))


def _folded(path: Path, frames: str, value: str) -> tuple[tuple[str, ...], float]:
    try:
        return tuple(map(printable, frames.split(";"))), _number(float(value))
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from None


def _fault(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no {error}"
    if isinstance(error, (AttributeError, LookupError)):
        return "a list, an object or a frame is missing"
    return str(error)


def _of_json(source: str, document: Any) -> Run:
    processes = document.get("processes", [document])
    rows = [row for each in processes for row in each["functions"]]
    stacks = (
        (tuple(map(_text, each["frames"])), _number(each["self_ns"]))
        for process in processes
        for each in process.get("stacks", ())
    )
    run = _of_stacks(source, stacks)
    functions: dict[str, Measured] = {}
    for row in rows:
        module = "" if row.get("module") == document.get("program") else _text(row.get("module") or "")
        name = _text(row["name"]) + (f" [{module}]" if module else "")
        hits, returns, total = (_number(row[key]) for key in ("hits", "returns", "total_ns"))
        own = row.get("self_ns")
        _add(functions, name, Measured(int(hits), int(returns), total, own if own is None else _number(own)))
    return Run(source, functions or run.functions, run.stacks)


def _of_stacks(source: str, stacks: Iterable[tuple[tuple[str, ...], float]]) -> Run:
    """By function, what is known of stacks is the time in their innermost frames."""
    found: dict[tuple[str, ...], float] = {}
    functions: dict[str, Measured] = {}
    for frames, value in stacks:
        found[frames] = found.get(frames, 0.0) + value
        _add(functions, frames[-1], Measured(0, 0, 0.0, value))
    return Run(source, functions, found)


def _of_trace(path: Path) -> Run:
    from fprobe.export.calls import LEAVE, all_steps, folded_lines
    from fprobe.export.trace_dat_reader import Trace

    trace = Trace(str(path))
    functions: dict[str, Measured] = {}
    for _, step in all_steps(trace):
        if step.kind == LEAVE:
            _add(functions, step.name, Measured(1, 1, step.duration, step.duration - step.stack[-1].inner))
    if not functions:
        raise ValueError(
            f"{path}: the recording has no calls: record both ends, such as -e 'f:a FUNC' -e 'f:b FUNC%return'"
        )
    folded = (line.rpartition(" ") for line in folded_lines(trace))
    return Run(
        str(path), functions, _of_stacks("", ((tuple(stack.split(";")), float(ns)) for stack, _, ns in folded)).stacks
    )


def _add(functions: dict[str, Measured], name: str, more: Measured) -> None:
    before = functions.get(name, Measured(0, 0, 0.0, 0.0))
    own = None if more.self is None or before.self is None else before.self + more.self
    functions[name] = Measured(before.hits + more.hits, before.returns + more.returns, before.total + more.total, own)
