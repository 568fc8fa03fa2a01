"""Reports and recordings as runs that can be compared: JSON of `stat` and `run`, folded stacks, trace.dat."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fprobe.report.difference import Measured, Run

_KINDS = "the JSON of fprobe run or fprobe stat, folded stacks, or a trace.dat"
_FOLDED = re.compile(r"(.+) (\d+)")
_MAGIC = b"\x17\x08Dtracing"


def runs_of(path: str) -> list[Run]:
    """The run in a file, or in each file of a directory, by name. Raises OSError, and ValueError for a file of another kind."""
    if Path(path).is_dir():
        files = sorted(each for each in Path(path).iterdir() if each.is_file() and not each.name.startswith("."))
        if not files:
            raise ValueError(f"{path}: there is no file in this directory; give {_KINDS}")
        return [_run_of(each) for each in files]
    return [_run_of(Path(path))]


def _run_of(path: Path) -> Run:
    data = path.read_bytes()
    if data.startswith(_MAGIC):
        return _of_trace(path)
    text = data.decode("utf-8", "replace")
    if text.lstrip().startswith("{"):
        try:
            return _of_json(str(path), json.loads(text))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: {_KINDS} is expected; in this JSON, {_fault(error)}") from None
    found = [_FOLDED.fullmatch(line) for line in text.splitlines()]
    if not found or None in found:
        raise ValueError(f"{path}: this is not {_KINDS}")
    return _of_stacks(str(path), ((tuple(each[1].split(";")), float(each[2])) for each in found if each))


def _fault(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


def _of_json(source: str, document: Any) -> Run:
    processes = document.get("processes", [document])
    rows = [row for each in processes for row in each["functions"]]
    stacks = ((tuple(each["frames"]), each["self_ns"]) for process in processes for each in process.get("stacks", ()))
    run = _of_stacks(source, stacks)
    functions: dict[str, Measured] = {}
    for row in rows:
        name = f"{row['name']} [{row['module']}]" if row.get("module") else row["name"]
        _add(functions, name, Measured(row["hits"], row["returns"], row["total_ns"], row.get("self_ns")))
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
