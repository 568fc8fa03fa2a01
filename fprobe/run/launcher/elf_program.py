"""Starts a program in machine code: it is stopped at its entry point until its probes are armed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from fprobe.run import session
from fprobe.run.launcher.attached import Attached
from fprobe.run.launcher.launching import Program, become
from fprobe.run.launcher.start_up import Progress, StartUp, no_progress
from fprobe.run.session import Settings
from sandbox.elf import tables as elf
from sandbox.remote import interpreter
from sandbox.remote.launched import Gate
from sandbox.remote.refusals import Refused

_CLASS_AT, _MACHINE = 4, slice(18, 20)
_ELF64, _X86_64 = 2, (62).to_bytes(2, "little")
_INTERPRETER = 3
"""PT_INTERP"""
_LOADER = "ld-linux-x86-64.so"
_SET_ID = 0o6000
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def why_not(path: str) -> str:
    """Why this ELF file cannot be run with probes, as a sentence; '' if it can."""
    try:
        data = Path(path).read_bytes()
        if not os.access(path, os.X_OK):
            return f"{path} is not executable: chmod +x {path}"
        if data[_CLASS_AT] != _ELF64 or data[_MACHINE] != _X86_64:
            return f"{path} is a 32-bit program, or one for another machine: only x86-64 is supported"
        return _why_not_loaded(path, elf.ElfFile(memoryview(data))) or _why_not_traced(path)
    except (OSError, ValueError, IndexError) as error:
        return f"{path}: {error.strerror or error if isinstance(error, OSError) else error}"


def _why_not_loaded(path: str, file: elf.ElfFile) -> str:
    loader = next((each for each in file.segments() if each.type == _INTERPRETER), None)
    if loader is None:
        return f"{path} is statically linked: there is no C library in it that could load an interpreter"
    name = bytes(file.data[loader.offset : loader.offset + loader.file_size]).rstrip(b"\0").decode(errors="replace")
    if not Path(name).name.startswith(_LOADER):
        return f"{path} uses {name}, not glibc (musl): only glibc is supported"
    return ""


def _why_not_traced(path: str) -> str:
    """A program that gets other rights as it is executed would not get them while it is traced."""
    found = Path(path).stat()
    gains = bool(found.st_mode & _SET_ID) and (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid())
    with contextlib.suppress(OSError):
        gains = gains or bool(os.geteuid() and os.getxattr(path, "security.capability"))
    reason = (
        f"{path} is set-user-ID, or has capabilities, which it would not get with probes: attach to it as root (-p)"
    )
    return reason if gains else ""


class ElfProgram(Program):
    """The running program, whose words are given with its path first. It is `held` at its entry; None if it has ended before."""

    def __init__(self, words: Sequence[str], output: int | None = None) -> None:
        gate = Gate()
        mask = self._fork()
        if not self.pid:
            if output is not None:
                os.dup2(output, 1)
                os.dup2(output, 2)
            gate.wait()
            become(words[0], words, os.environ, mask)
        self.held = gate.open(self.pid)

    def is_ending(self) -> bool:
        """Whether it has got a signal that ends programs; its probes are not waited for any more."""
        return not self.seen.isdisjoint(_ENDING)


def start(
    words: Sequence[str], settings: Settings, output: int | None = None, progress: Progress = no_progress
) -> tuple[Program, int, int]:
    """Start the program with probes. Returns it, its file of counts, and its journal. `progress`: shows what is done.

    Raises Refused if there is no interpreter to bring along, before it is started, and OSError. What fails later is in the
    journal, and the program runs without probes.
    """
    interpreter.find()
    program = ElfProgram(words, output)
    if program.held is None:
        return program, *_empty(program.pid, words, settings, "")
    with program.held:
        try:
            start_up = StartUp(f"reading process {program.pid}")
            with progress(start_up.text_now):
                attached = Attached(program.pid, settings, program.is_ending, program.held, start_up)
        except Refused as failure:
            reason = "" if failure.errno in (errno.EINTR, errno.ESRCH) else str(failure.strerror)
            return program, *_empty(program.pid, words, settings, reason)
    return program, attached.counts, attached.journal


def _empty(pid: int, words: Sequence[str], settings: Settings, reason: str) -> tuple[int, int]:
    """The memory of a session that has not begun. `reason`: why."""
    counts, journal = session.create(settings)
    entry = {"pid": pid, "argv": list(words), "parent": os.getpid(), **({"error": reason} if reason else {})}
    os.lseek(journal, 0, os.SEEK_END)
    os.write(journal, json.dumps(entry).encode() + b"\n")
    return counts, journal
