"""The commands that copy data: cat, cp, dd and tee."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from tests.busybox.files import operands, try_each
from tests.busybox.shell import Descriptors, Shell

_BLOCK = 512
_CHUNK = 1 << 16
_INTERVAL = 0.02
"""Seconds between two attempts to read a file that has no data."""
_SIZE = re.compile(r"(\d+)(c|w|b|k|K|M|kB|KB)?")
_UNITS = {"": 1, "c": 1, "w": 2, "b": 512, "k": 1024, "K": 1024, "M": 1 << 20, "kB": 1000, "KB": 1000}


def blocks(shell: Shell, handle: Any, size: int, count: int = -1) -> Iterator[bytes]:
    """At most `count` blocks of a file, until its end.

    A file without data is waited for if the command may wait, else it ends there.
    """
    while count != 0:
        shell.pause(0)
        try:
            block = handle.read(size)
        except BlockingIOError:
            if not shell.may_wait:
                return
            shell.pause(_INTERVAL)
            continue
        if not block:
            return
        yield block
        count -= 1


def input_of(shell: Shell, fds: Descriptors) -> bytes:
    """All of standard input."""
    return b"" if fds[0] is None else b"".join(blocks(shell, fds[0], _CHUNK))


def write_all(handle: Any, data: bytes) -> None:
    """Write data, and what is left of it after a short write. Raises OSError."""
    while data:
        data = data[handle.write(data) :]


def output(program: str | None, data: bytes, fds: Descriptors) -> int:
    """Write to standard output. Returns the exit status; a failure is told if there is a program."""
    try:
        write_all(fds[1], data)
    except OSError as failed:
        if program:
            fds[2].write(f"{program}: write error: {os.strerror(failed.errno or 0)}\n".encode())
        return 1
    return 0


class _RefusedError(Exception):
    """What could not be done, and why."""


@contextmanager
def _doing(what: str) -> Iterator[None]:
    """Raises _RefusedError for an OSError."""
    try:
        yield
    except OSError as failed:
        raise _RefusedError(f"{what}: {os.strerror(failed.errno or 0)}") from None


def _read(shell: Shell, handle: Any, size: int, count: int, failure: str) -> Iterator[bytes]:
    """As `blocks`. Raises _RefusedError with `failure`."""
    if handle is not None:
        with _doing(failure):
            yield from blocks(shell, handle, size, count)


def _told(program: str, action: Callable[[], None], fds: Descriptors) -> int:
    """Call `action`. Returns the exit status: 1 if something could not be done, which is told."""
    try:
        action()
    except _RefusedError as refused:
        fds[2].write(f"{program}: {refused}\n".encode())
        return 1
    return 0


def cat(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """`cat [FILE...]`; `-` is standard input."""

    def copy(path: str) -> None:
        with ExitStack() as stack:
            handle = fds[0]
            if path != "-":
                with _doing(f"can't open '{path}'"):
                    handle = stack.enter_context(shell.files.open(path, os.O_RDONLY | os.O_NONBLOCK))
            for block in _read(shell, handle, _CHUNK, -1, "read error"):
                with _doing("write error"):
                    write_all(fds[1], block)

    return max(_told("cat", partial(copy, path), fds) for path in [word for word in words if word != "-u"] or ["-"])


def cp(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """`cp FILE... TARGET`."""
    *sources, target = operands(words) or [""]
    is_directory = shell.files.is_directory(target)

    def copy(source: str) -> None:
        path = f"{target}/{source.rpartition('/')[2]}" if is_directory else target
        with ExitStack() as stack:
            with _doing(f"can't stat '{source}'"):
                shell.files.find(source)
            with _doing(f"can't open '{source}'"):
                handle = stack.enter_context(shell.files.open(source, os.O_RDONLY | os.O_NONBLOCK))
            with _doing(f"can't create '{path}'"):
                made = stack.enter_context(shell.files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
            for block in _read(shell, handle, _CHUNK, -1, "read error"):
                with _doing("write error"):
                    write_all(made, block)

    return max((_told("cp", partial(copy, source), fds) for source in sources), default=1)


def dd(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """`dd [if=FILE] [of=FILE] [bs=N] [count=N] [skip=N] [seek=N] [conv=notrunc] [status=none]`."""
    given = {name: value for name, _, value in (word.partition("=") for word in words)}
    return _told("dd", lambda: _copy_blocks(shell, given, fds), fds)


def _copy_blocks(shell: Shell, given: dict[str, str], fds: Descriptors) -> None:
    """Copy the blocks that dd's operands choose."""
    source, target = fds[0], fds[1]
    source_name, target_name = given.get("if", "standard input"), given.get("of", "standard output")
    size = _bytes(given.get("ibs", given.get("bs", str(_BLOCK))))
    counts = [0, 0]
    with ExitStack() as stack:
        if "if" in given:
            with _doing(f"can't open '{source_name}'"):
                source = stack.enter_context(shell.files.open(source_name, os.O_RDONLY | os.O_NONBLOCK))
        for _ in _read(shell, source, size, _bytes(given.get("skip", "0")), source_name):
            pass
        if "of" in given:
            with _doing(f"can't open '{target_name}'"):
                target = stack.enter_context(_target(shell, given))
        for block in _read(shell, source, size, _bytes(given["count"]) if "count" in given else -1, source_name):
            counts[len(block) != size] += 1
            with _doing(f"writing '{target_name}'"):
                write_all(target, block)
    if given.get("status") != "none":
        tally = f"{counts[0]}+{counts[1]} records"
        fds[2].write(f"{tally} in\n{tally} out\n".encode())


def _target(shell: Shell, given: dict[str, str]) -> Any:
    """The file that dd writes to, at the position to begin at."""
    keeps = "notrunc" in given.get("conv", "").split(",")
    handle = shell.files.open(given["of"], os.O_WRONLY | os.O_CREAT | (0 if keeps else os.O_TRUNC))
    if "seek" in given:
        handle.seek(_bytes(given["seek"]) * _bytes(given.get("obs", given.get("bs", str(_BLOCK)))))
    return handle


def _bytes(text: str) -> int:
    """A number with its unit. Raises _RefusedError."""
    if (found := _SIZE.fullmatch(text)) is None:
        raise _RefusedError(f"invalid number '{text}'")
    return int(found[1]) * _UNITS[found[2] or ""]


def tee(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """`tee [-a] FILE...`: copy standard input to standard output and to files."""
    data = input_of(shell, fds)
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if "-a" in words else os.O_TRUNC)

    def copy(path: str) -> None:
        with shell.files.open(path, flags) as handle:
            write_all(handle, data)

    status = try_each(operands(words), copy, "tee: {}: {}", fds)
    return output("tee", data, fds) or status
