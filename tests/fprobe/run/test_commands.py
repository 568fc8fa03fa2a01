"""Hazard: console scripts are started by their names, from the environment's directory or PATH; some are for another Python."""

import sys

import pytest

from fprobe.run.launcher.commands import of_other_python, with_command

SCRIPT = f"#!{sys.executable}\nimport sys, zlib\nzlib.compress(b'x')\nprint(sys.argv)\nsys.exit(3)\n"


def command(directory, name, content):
    path = directory / "bin" / name
    path.write_text(content)
    path.chmod(0o755)
    return str(path)


def test_a_console_script_is_run_by_its_name(launch, directory):
    path = command(directory, "serve", SCRIPT)
    done = launch("--stat", "libz:deflate", words=("serve", "app:app", "-w", "2"))
    assert (done.returncode, done.out) == (3, f"{[path, 'app:app', '-w', '2']}\n")
    assert done.functions()["deflate"]["hits"] == 1


@pytest.mark.stress
def test_a_program_in_machine_code_is_run_by_its_name(launch):
    done = launch("--stat", "libc:write", words=("true",))
    assert done.returncode in (0, 1) and "no such file" not in done.err


def test_what_is_here_goes_first(directory):
    path = command(directory, "serve", SCRIPT)
    assert with_command(["serve", "x"]) == [path, "x"]
    (directory / "serve").mkdir()
    assert with_command(["serve"]) == [path], "a directory that Python does not run"
    (directory / "serve" / "__main__.py").touch()
    assert with_command(["serve"]) == ["serve"]
    assert with_command(["-m", "serve"]) == ["-m", "serve"]
    assert with_command(["./bin/none"]) == ["./bin/none"]


@pytest.mark.stress
def test_a_command_of_another_python(launch, directory):
    path = command(directory, "elsewhere", "#!/opt/other/bin/python3.9 -I\nprint(1)\n")
    assert of_other_python("elsewhere", path).startswith(
        f"elsewhere is a command of another Python: {path} is run by /opt/other/bin/python3.9, and fprobe by {sys.executable}"
    )
    done = launch("--stat", "libz:deflate", words=("elsewhere",), as_json=False)
    assert (done.returncode, done.out) == (2, "")
    assert done.err.startswith("fprobe: elsewhere is a command of another Python")
    general = command(directory, "general", "#!/usr/bin/env python3\nprint(1)\n")
    assert of_other_python("general", general) == "" and of_other_python(path, path) == ""


@pytest.mark.stress
def test_a_command_in_another_language(launch, directory):
    path = command(directory, "shell", "#!/bin/sh\nif true; then ls; fi\n")
    done = launch("--stat", "libz:deflate", words=("shell",), as_json=False)
    assert (done.returncode, done.err.partition(":")[2].strip()) == (
        2,
        f"{path} is a program for /bin/sh: give the Python program or the executable that it starts",
    )
