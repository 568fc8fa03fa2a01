"""Replays a transcript on a machine."""

from __future__ import annotations

import errno
import os

from ftrace.tracing.files.nodes import Handle
from tests.busybox.commands import Commands
from tests.busybox.files import Files
from tests.busybox.shell import Shell, Sink, UnsupportedError
from tests.golden.machine import Machine
from tests.golden.transcript import ECHO, NO_NEWLINE, Step


class ProcessFiles(Files):
    """The files of a machine. What is opened or written is so by a process of its own, which leaves no slot in use behind it."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.tracefs, machine.opened)
        self._machine = machine

    def open(self, path: str, flags: int) -> Handle:
        return _ProcessHandle(super().open(path, flags), self._machine)


class _ProcessHandle(Handle):
    def __init__(self, handle: Handle, machine: Machine) -> None:
        self._handle, self._machine = handle, machine
        self.read, self.seek, self.close = handle.read, handle.seek, handle.close  # type: ignore[method-assign]

    def write(self, data: bytes) -> int:
        taken: list[int] = []
        self._machine.as_process(lambda: taken.append(self._handle.write(data)))
        return taken[0]


class Replayer:
    """Runs the steps of one transcript; the machine must be fresh."""

    def __init__(self, machine: Machine) -> None:
        self.files = ProcessFiles(machine)
        self._commands = Commands({"hit": lambda _shell, words, _fds: machine.hit(words) or 0})
        self._shell = Shell(self.files, self._commands.run)

    def outcome(self, command: str) -> Step:
        """What comes of a step's command."""
        got = Step(command)
        if echo := ECHO.fullmatch(command):
            text = echo[2] + ("" if echo[1] else "\n")
            self._echo(got, text, echo[4], append=echo[3] == ">>", once=bool(echo[5]))
        elif command.startswith("cat ") and len(command.split()) == 2:
            self._cat(got, command.split()[1])
        else:
            self._other(got)
        return got

    def _echo(self, got: Step, text: str, path: str, *, append: bool, once: bool) -> None:
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC)
        data = text.encode("utf-8", "surrogateescape")
        try:
            handle = self.files.open(path, flags)
        except OSError as failed:
            got.failures.append(f"open: {_name(failed)}")
            return
        with handle:
            try:
                taken = handle.write(data)
                while taken < len(data) and not once:
                    taken += handle.write(data[taken:])
            except OSError as failed:
                got.failures.append(_name(failed))
                return
        if taken < len(data):
            got.failures.append(f"short {taken}/{len(data)}")

    def _cat(self, got: Step, path: str) -> None:
        try:
            handle = self.files.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as failed:
            got.failures.append(f"open: {_name(failed)}")
            return
        with handle:
            try:
                _show(got, handle.read(), marked=True)
            except BlockingIOError:
                return
            except OSError as failed:
                got.failures.append(_name(failed))

    def _other(self, got: Step) -> None:
        sink = Sink()
        command = got.command
        if command.startswith("sh -c '") and command.endswith("'"):
            # Its quotes are not those of a shell: what is between the first and the last is the script.
            status = Shell(self.files, self._commands.run).run(command[7:-1], sink, sink)
        else:
            status = self._shell.run(command, sink, sink)
        _show(got, sink.data, marked=False)
        if status:
            got.failures.append(f"exit {status}")


def _name(failed: OSError) -> str:
    # Linux has one number for both, and Python knows the other name.
    name = errno.errorcode.get(failed.errno or 0, str(failed.errno))
    return "EOPNOTSUPP" if name == "ENOTSUP" else name


def _show(got: Step, data: bytes, *, marked: bool) -> None:
    if not data:
        return
    text = data.decode("utf-8", "surrogateescape")
    got.output += text.removesuffix("\n").split("\n")
    if marked and not text.endswith("\n"):
        got.output.append(NO_NEWLINE)


def run_step(replayer: Replayer, expected: Step) -> Step:
    """The outcome of a step; a command that is not supported, or a failure of ours, is an outcome that differs."""
    try:
        return replayer.outcome(expected.command)
    except UnsupportedError as unknown:
        return Step(expected.command, [f"unsupported: {unknown}"])
