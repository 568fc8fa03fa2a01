"""set_ftrace_filter against the transcript of a real kernel (golden/): FT-32..35, FT-63, FT-66.

A step is `$ COMMAND`, `! ERROR` what it failed with, everything up to the next step its output. `echo` writes its text
and a newline, a token per write(2), as the shell does.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

import sandbox
from ftrace.filters.filter_file import FilterFile, read_filter

TRANSCRIPT = Path(__file__).parent / "golden" / "sff-01-globs.txt"
_ECHO = re.compile(r"echo '(.*)' (>>?) set_ftrace_filter(   # strictly one write\(2\))?")


def steps(text):
    """(command, failure or '', output) of each step."""
    for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *lines = step.splitlines()
        failures = [line[2:] for line in lines if line.startswith("! ")]
        yield command, "".join(failures), [line for line in lines if not line.startswith("! ")]


STEPS = list(steps(TRANSCRIPT.read_text()))


@pytest.fixture(scope="module", autouse=True)
def program():
    """The kernel's functions, by name and in its order."""
    names = STEPS[0][2]
    module = sandbox.load("".join(f"define void @{name}() {{ ret void }}\n" for name in names), name="golden")
    yield module
    FilterFile().close()
    module.unload()


def echo(text, append, once):
    """The failure, as the transcript writes it."""
    with FilterFile(append=append) as file:
        text += "\n"
        try:
            if once:
                taken = file.write(text)
                return f"short {taken}/{len(text)}" if taken < len(text) else ""
            file.write_all(text)
        except OSError as error:
            return errno.errorcode[error.errno]
    return ""


def shown(notrace=False):
    return [line.replace(" [golden]", "") for line in read_filter(notrace=notrace).splitlines()]


def test_ft32_ft33_ft35_ft63_ft66_the_kernels_answers(program):
    wrong, done = [], 0
    for command, failure, output in STEPS[1:]:
        match = _ECHO.fullmatch(command)
        if match:
            got = echo(match[1], match[2] == ">>", bool(match[3])), []
        else:
            got = "", shown(notrace=command.endswith("notrace"))
        done += 1
        if got != (failure, output):
            wrong.append((command, got, (failure, output)))
    assert not wrong and done > 40
