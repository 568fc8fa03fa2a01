"""Long work is named on a terminal while it lasts, with its size, and nowhere else."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from command import COMMAND, environment

import fprobe
from fprobe.cli import console, matching, program
from fprobe.cli.options import ProgramTarget
from ftrace.core.filters import image_functions


class Terminal:
    """A pseudo-terminal: `file` is what a program writes to."""

    def __init__(self):
        self.descriptor, theirs = pty.openpty()
        self.file = os.fdopen(theirs, "w")

    def read_until(self, text):
        """What it shows up to and with `text`."""
        shown = ""
        while text not in shown:
            assert select.select([self.descriptor], [], [], 20)[0], f"only {shown!r}"
            shown += os.read(self.descriptor, 4096).decode()
        return shown

    @property
    def is_empty(self):
        return not select.select([self.descriptor], [], [], 0)[0]

    def close(self):
        self.file.close()
        os.close(self.descriptor)


@pytest.fixture
def terminal(monkeypatch):
    made = Terminal()
    monkeypatch.setattr(console, "sys", SimpleNamespace(stderr=made.file))  # pytest puts its own into sys
    monkeypatch.setenv("TERM", "xterm")
    yield made
    made.close()


def test_work_is_named_with_its_seconds_and_erased(terminal):
    with console.progress_line(lambda: "compiling x.c", after=0):
        assert terminal.read_until(" s") == "\r\x1b[Kcompiling x.c: 0 s"
    assert terminal.read_until("\x1b[K") == "\r\x1b[K"


def test_it_is_erased_when_the_work_fails(terminal):
    with pytest.raises(ValueError), console.progress_line(lambda: "compiling x.c", after=0):
        terminal.read_until(" s")
        raise ValueError
    assert terminal.read_until("\x1b[K") == "\r\x1b[K"


def test_nothing_is_shown_of_work_that_is_quick(terminal):
    with console.progress_line(lambda: "compiling x.c", after=60):
        pass
    assert terminal.is_empty


@pytest.mark.parametrize("option", ["as_json", "quiet"])
def test_nobody_tells_where_it_is_not_wanted(terminal, option):
    with click.Context(click.Command("list")) as context:
        context.params[option] = False
        assert console._progress_is_wanted()
        context.params[option] = True
        assert not console._progress_is_wanted()


def test_only_a_terminal_that_can_erase_is_told(terminal, monkeypatch):
    assert console._progress_is_wanted()
    monkeypatch.setenv("TERM", "dumb")
    assert not console._progress_is_wanted()
    monkeypatch.setenv("TERM", "xterm")
    with Path(os.devnull).open("w") as other:
        monkeypatch.setattr(console.sys, "stderr", other)
        assert not console._progress_is_wanted()


def test_compiling_is_such_work(tmp_path):
    """The compiler goes on when it has been named: the reader then opens the pipe that it waits for."""
    (tmp_path / "prog.c").write_text("int twice(int x) { return 2 * x; }\n")
    (tmp_path / "slow").write_text('#!/bin/sh\ncase "$*" in *-E*) ;; *) read line < gate ;; esac\nexec cc "$@"\n')
    (tmp_path / "slow").chmod(0o755)
    os.mkfifo(tmp_path / "gate")
    terminal = Terminal()
    with subprocess.Popen(
        [*COMMAND, "list", "--program", "prog.c"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=terminal.file,
        env=environment(CC=str(tmp_path / "slow"), TERM="xterm"),
    ) as process:  # fmt: skip
        assert terminal.read_until(" s").startswith("\r\x1b[Kcompiling prog.c, 1 function: 1")
        (tmp_path / "gate").write_text("go on\n")
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"twice [prog]\n")
    assert terminal.read_until("\x1b[K").endswith("\r\x1b[K")
    terminal.close()


def test_the_number_of_functions_is_that_of_the_source(tmp_path):
    """Bitcode is not counted: LLVM would have to parse it in this process, and may end it."""
    (tmp_path / "two.ll").write_text("define i32 @one() {\n  ret i32 1\n}\ndefine void @two() {\n  ret void\n}\n")
    (tmp_path / "two.bc").write_bytes(b"BC\xc0\xde damaged")
    assert _work_of(tmp_path / "two.ll") == "compiling two.ll, 2 functions"
    assert _work_of(tmp_path / "two.bc") == "compiling two.bc"
    assert _work_of(tmp_path / "none.ll") == "compiling none.ll"


def _work_of(path):
    return program._work(ProgramTarget(str(path), (), 1, None, ()))


def test_reading_a_librarys_functions_is_named(terminal, monkeypatch):
    """As of LLVM's 120,000, which takes seconds."""
    shown = []

    def reading(pattern):
        shown.append(terminal.read_until(" s"))
        return found(pattern)

    found = image_functions.find_functions
    monkeypatch.setattr(image_functions, "find_functions", reading)
    monkeypatch.setattr(matching, "progress_line", partial(console.progress_line, after=0))
    assert matching.match_image("libz:crc32").matched == 1
    assert shown == ["\r\x1b[Kreading the functions that match libz:crc32: 0 s"]


def test_probing_many_functions_is_named(terminal, monkeypatch):
    def attaching(_addresses, **_options):
        return SimpleNamespace(attach=lambda: shown.append(terminal.read_until(" s")), detach=lambda: None)

    shown = []
    monkeypatch.setattr(fprobe, "attach", attaching)
    monkeypatch.setattr(matching, "progress_line", partial(console.progress_line, after=0))
    with matching.attached(matching.MatchedFunctions([SimpleNamespace(address=at) for at in range(2000)])):
        assert shown == ["\r\x1b[Kprobing 2,000 functions: 0 s"]
