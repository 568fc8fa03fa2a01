"""The formats of what is written: their names for --format, and the suffixes of -o that mean them, in every verb."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from fprobe.cli.failure import Failure


class Format(NamedTuple):
    """A format. `suffixes`: of the names of its files; `is_binary`: not for a terminal; `is_beside`: beside the output."""

    suffixes: tuple[str, ...]
    is_binary: bool = False
    is_beside: bool = False


FORMATS = {
    "text": Format((".txt",)),
    "tree": Format(()),
    "json": Format((".json",)),
    "ndjson": Format((".ndjson", ".jsonl")),
    "csv": Format((".csv",)),
    "folded": Format((".folded",)),
    "flame": Format((".html",)),
    "svg": Format((".svg",), is_beside=True),
    "speedscope": Format((".speedscope.json",)),
    "perfetto": Format((".pftrace", ".perfetto-trace"), is_binary=True),
    "parquet": Format((".parquet",), is_binary=True),
    "trace.dat": Format((".dat",), is_binary=True),
}
_REMOVED = {
    "chrome": "the format chrome is not written any more: give --format perfetto, which ui.perfetto.dev opens, too",
    "kernel": "the format kernel is called text: give --format text",
}
_ELSEWHERE = {
    "trace.dat": "fprobe record writes a trace.dat, of a running process by `fprobe record -p PID`",
    "svg": "fprobe diff writes svg",
    "flame": "fprobe run --stacks PATTERN writes flame graphs",
}
"""Formats of few verbs, with those."""


def format_of(name: str | None, output: str | None, allowed: Collection[str], default: str) -> str:
    """What --format and the suffix of -o mean. Raises Failure if they contradict, or for a format that is not `allowed`."""
    if name in _REMOVED:
        raise Failure(_REMOVED[name])
    there = ", ".join(each for each in FORMATS if each in allowed)
    if name is not None and name not in allowed:
        raise Failure(f"--format is {name}; there are: {there}{_elsewhere(name)}")
    meant = _of_suffix(output) if output is not None else None
    if meant is None or meant == name:
        return name or default
    if name is not None:
        raise Failure(f"-o {output} means the format {meant}, and --format is {name}: give one of them")
    if meant not in allowed:
        raise Failure(
            f"-o {output} means the format {meant}, which is not written here; there are: {there}{_elsewhere(meant)}"
        )
    return meant


def _elsewhere(name: str) -> str:
    return f"; {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""


def report_file(output: str, form: str = "text", *, kept: bool = False) -> int:
    """A descriptor of the file, which nobody else may write if it is Parquet. Raises Failure.

    It is emptied, unless it is `kept` until `empty` is called; Parquet is when its first rows, or its end, are written.
    """
    try:
        if form == "parquet":
            from fprobe.export.columns.parquet import opened

            return opened(output)
        return os.open(output, os.O_WRONLY | os.O_CREAT | (0 if kept else os.O_TRUNC) | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise Failure(f"{output}: {error.strerror}") from None


@contextlib.contextmanager
def absent_if_refused(output: str | None) -> Iterator[None]:
    """If the block raises Failure, and has made the file, it goes; but not what was written into it."""
    path = Path(output) if output is not None else None
    was_there = path is None or path.exists()
    try:
        yield
    except Failure:
        if path is not None and not was_there and path.is_file() and not path.stat().st_size:
            path.unlink()
        raise


def empty(descriptor: int, form: str) -> None:
    """Empty a kept file of `report_file`, if it is a regular one."""
    if form != "parquet" and stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.ftruncate(descriptor, 0)


def prepare_rows() -> None:
    """Load what writes Parquet while a program runs."""
    from fprobe.run.launcher.run_rows import prepare

    prepare()


def check_package(form: str) -> None:
    """Raise Failure if the package that writes the format cannot be imported."""
    try:
        if form == "perfetto":
            from fprobe.export import perfetto

            perfetto.check_installed()
        elif form == "parquet":
            from fprobe.export.columns import parquet

            parquet.check_installed()
    except ModuleNotFoundError as error:
        raise Failure(str(error)) from None


def _of_suffix(output: str) -> str | None:
    """The format of the longest suffix; None for a name without one that is known."""
    found = [
        (len(suffix), name) for name, each in FORMATS.items() for suffix in each.suffixes if output.endswith(suffix)
    ]
    return max(found)[1] if found else None
