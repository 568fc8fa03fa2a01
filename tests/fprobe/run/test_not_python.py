"""Hazard: what is given as the program is none that python can run, and nobody says what to give instead."""

from __future__ import annotations

import os
import sys
import zipfile

import pytest

from fprobe.run.launcher.not_python import is_machine_code, why_not_python

ELF = b"\x7fELF\2\1\1" + bytes(100)


def command(directory, name, content):
    (directory / "bin" / name).write_bytes(content)
    (directory / "bin" / name).chmod(0o755)


@pytest.mark.stress
def test_machine_code_that_cannot_be_run_is_refused_before_anything_is_written(launch, directory):
    (directory / "server").write_bytes(ELF)
    (directory / "server").chmod(0o755)
    for options in ((), ("--stat", "libz:deflate"), ("--stat", "libz:deflate", "-o", "kept")):
        (directory / "kept").write_text("an earlier report")
        done = launch(*options, words=("./server",), as_json=False)
        assert (done.returncode, done.out) == (2, "")
        assert (
            done.err == "fprobe: ./server is a 32-bit program, or one for another machine: only x86-64 is supported\n"
        )
    assert (directory / "kept").read_text() == "an earlier report"
    assert launch("--stat", "libz:deflate", words=("./server",), verb="top", as_json=False).returncode == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            b"#!/bin/sh\nif true; then ls; fi\n",
            "app is a program for /bin/sh: give the Python program or the executable that it starts",
        ),
        (b"\x89PNG\r\n\0\0\0", "app is binary data: give a Python program or an executable"),
        (b"#!/bin/sh\n''''exec python3 \"$0\" # '''\nprint(1)\n", ""),
        (b"#!/usr/bin/env python3\nif true; then ls; fi\n", ""),
        (b"def broken(", ""),
    ],
)
def test_files_of_other_languages(directory, content, reason):
    (directory / "app").write_bytes(content)
    assert why_not_python(["app"]) == reason


def test_a_zip_file_may_begin_with_machine_code(directory):
    with zipfile.ZipFile(directory / "app", "w") as archive:
        archive.writestr("__main__.py", "print(1)")
    (directory / "app").write_bytes(ELF + (directory / "app").read_bytes())
    assert why_not_python(["app"]) == "" and not is_machine_code(["app"])
    (directory / "tool").write_bytes(ELF + b"PK\5\6" + bytes(18))
    assert is_machine_code(["tool"]), "a mark of a zip file, as in sqlite3"


def test_commands_and_modules(directory):
    command(directory, "serve", f"#!{sys.executable}\nprint(1)\n".encode())
    command(directory, "compiled", ELF)
    found = f"{directory}/bin"
    missing = "can't open file {0!r}: no such file"
    options = "; options of python are given: give the path of the command,"
    assert why_not_python(["-O", "serve"]) == f"{missing.format('serve')}{options} {found}/serve"
    assert why_not_python(["-O", "bin/compiled"]).endswith("machine code: leave out the options of python before it")
    assert why_not_python(["json.tool"]) == f"{missing.format('json.tool')}; for the module give -m json.tool"
    assert why_not_python(["email"]) == missing.format("email"), "a package without a __main__"
    assert why_not_python(["./serve"]) == missing.format("./serve")
    (directory / "mine").mkdir()
    assert why_not_python(["mine"]) == "mine is a directory without __main__.py"
    (directory / "mine" / "__main__.py").touch()
    assert why_not_python(["mine"]) == ""


def test_the_interpreter_is_left_out(directory):
    command(directory, "python9", ELF)
    assert why_not_python(["python9", "app.py"]).endswith(
        "; leave out python9: fprobe run starts the program with python"
    )
    assert "leave it out" in why_not_python([f"{directory}/bin/python9", "app.py"])


@pytest.mark.parametrize(
    "words", [["-"], ["-c", "pass"], ["-Ec", "pass"], ["-m", "none"], ["-V", "none"], ["--version", "none"]]
)
def test_options_with_which_no_script_is_run(words):
    assert why_not_python(words) == ""


@pytest.mark.parametrize("options", [["-O"], ["-X", "dev"], ["-Wd"], ["-W", "error"], ["-Xdev", "-BE"]])
def test_options_before_a_script(directory, options):
    assert why_not_python([*options, "none.py"]) == "can't open file 'none.py': no such file"


def test_a_pipe_is_not_read(directory):
    os.mkfifo(directory / "pipe")
    assert why_not_python(["pipe"]) == ""
