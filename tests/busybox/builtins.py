"""The commands that act on the shell itself: set, read, export, eval, trap, wait, kill and others."""

from __future__ import annotations

import os
import re

from tests.busybox.shell import Descriptors, Run, Shell, UnsupportedError, number_of

_KILLED = 143
_NOT_FOUND = 127
_INTERVAL = 0.02
_SIGNAL = re.compile(r"-\w+")
_SPLIT = re.compile(r"[ \t\n]+")
_ENDS = ("EXIT", "0")


def _set(shell: Shell, words: list[str], _fds: Descriptors) -> int:
    """`set [-eux] [--] [ARGUMENT...]`."""
    while words and (words[0][:1] in "-+" and len(words[0]) > 1):
        option, words = words[0], words[1:]
        if option == "--":
            shell.arguments = words
            return 0
        if option in ("-o", "+o"):
            raise UnsupportedError(f"set {option}")
        for letter in option[1:]:
            _set_flag(shell, letter, option[0] == "-")
    if words:
        shell.arguments = words
    return 0


def _set_flag(shell: Shell, letter: str, on: bool) -> None:
    match letter:
        case "e":
            shell.ends_at_failure = on
        case "u":
            shell.refuses_unset = on
        case "x":
            shell.shows_commands = on
        case _:
            raise UnsupportedError(f"set -{letter}")


def _shift(shell: Shell, words: list[str], _fds: Descriptors) -> int:
    count = number_of(words[0]) if words else 1
    if count > len(shell.arguments):
        return 1
    shell.arguments = shell.arguments[count:]
    return 0


def _unset(shell: Shell, words: list[str], _fds: Descriptors) -> int:
    for name in words:
        if name not in ("-f", "-v"):
            (shell.functions if "-f" in words else shell.variables).pop(name, None)
    return 0


def _assign(shell: Shell, words: list[str]) -> list[str]:
    """Make the assignments among words `NAME=VALUE` and `NAME`. Returns the names."""
    names = []
    for word in words:
        if word.startswith("-"):
            continue
        name, is_assigned, value = word.partition("=")
        names.append(name)
        if is_assigned:
            shell.variables[name] = value
    return names


def _export(shell: Shell, words: list[str], _fds: Descriptors) -> int:
    shell.exported.update(_assign(shell, words))
    return 0


def _local(shell: Shell, words: list[str], fds: Descriptors) -> int:
    if not shell.locals:
        fds[2].write(b"sh: local: not in a function\n")
        return 1
    for word in words:
        name = word.partition("=")[0]
        shell.locals[-1].setdefault(name, shell.variables.get(name))
    _assign(shell, words)
    return 0


def _read(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """`read [-r] NAME...`: a line of standard input; fails at its end."""
    is_raw, names = "-r" in words, [word for word in words if not word.startswith("-")]
    line = b""
    while fds[0] is not None and (letter := _letter(shell, fds)):
        line += letter
        if letter == b"\n":
            if is_raw or not line.endswith(b"\\\n"):
                break
            line = line[:-2]
    text = line.decode("utf-8", "surrogateescape")
    text = text if is_raw else re.sub(r"\\(.)", r"\1", text)
    values = _split(text.removesuffix("\n"), shell.variables.get("IFS", " \t\n"), len(names))
    shell.variables.update(zip(names, [*values, *[""] * len(names)], strict=False))
    return int(not line.endswith(b"\n"))


def _letter(shell: Shell, fds: Descriptors) -> bytes:
    """The next byte of standard input, for which the command waits if it may."""
    while True:
        try:
            return bytes(fds[0].read(1))
        except BlockingIOError:
            if not shell.may_wait:
                return b""
            shell.pause(_INTERVAL)


def _split(text: str, separators: str, count: int) -> list[str]:
    """At most `count` fields; the last has the rest of the line."""
    if not separators or count < 1:
        return [text]
    blanks = "".join(letter for letter in separators if letter.isspace())
    if blanks:
        text = text.strip(blanks)
    if count == 1:
        return [text]
    separator = rf"[{re.escape(blanks)}]*[{re.escape(separators)}][{re.escape(blanks)}]*"
    return re.split(separator if blanks else f"[{re.escape(separators)}]", text, maxsplit=count - 1)


def _trap(shell: Shell, words: list[str], _fds: Descriptors) -> int:
    """`trap ACTION EXIT`: at the end. No other signal reaches a script."""
    words = words[1:] if words[:1] == ["--"] else words
    if any(name in _ENDS for name in words[1:]):
        shell.trap = "" if words[0] == "-" else words[0]
    return 0


def _wait(shell: Shell, words: list[str], _fds: Descriptors) -> int:
    """Wait for the jobs; the exit status is that of the last one named, 0 if all are waited for."""
    status = 0
    for number in words or list(shell.jobs):
        job = shell.jobs.get(number.removeprefix("%"))
        while job is not None and job.is_running:
            shell.pause(_INTERVAL)
        status = _NOT_FOUND if job is None else job.wait()
    return status if words else 0


def _kill(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """`kill [-SIGNAL] JOB...`: end jobs where they sleep or wait for data, whatever the signal."""
    status = 0
    for number in words[1:] if words and _SIGNAL.fullmatch(words[0]) else words:
        job = shell.jobs.get(number.removeprefix("%"))
        if job is None or not job.is_running:
            fds[2].write(f"sh: can't kill pid {number}: No such process\n".encode())
            status = 1
        elif words[0] != "-0":
            job.kill()
    return status


def _run_in_place_of_the_shell(shell: Shell, words: list[str], fds: Descriptors) -> int:
    shell.status = shell.run_words(words, fds)
    return shell.leave(["exit"])


def _source(shell: Shell, words: list[str], fds: Descriptors) -> int:
    """`. FILE`: run a file in this shell."""
    try:
        text = shell.files.read(words[0]).decode("utf-8", "surrogateescape")
    except OSError as failed:
        fds[2].write(f"sh: can't open '{words[0]}': {os.strerror(failed.errno or 0)}\n".encode())
        shell.status = 2
        return shell.leave(["exit"])
    return shell.evaluate(text, fds)


BUILTINS: dict[str, Run] = {
    ".": _source,
    ":": lambda *_: 0,
    "break": lambda shell, words, _: shell.leave(["break", *words]),
    "continue": lambda shell, words, _: shell.leave(["continue", *words]),
    "eval": lambda shell, words, fds: shell.evaluate(" ".join(words), fds),
    "exec": _run_in_place_of_the_shell,
    "exit": lambda shell, words, _: shell.leave(["exit", *words]),
    "export": _export,
    "kill": _kill,
    "local": _local,
    "read": _read,
    "readonly": lambda shell, words, _: bool(_assign(shell, words)) * 0,
    "return": lambda shell, words, _: shell.leave(["return", *words]),
    "set": _set,
    "shift": _shift,
    "trap": _trap,
    "unset": _unset,
    "wait": _wait,
}
"""The builtins, by name."""
