"""set_ftrace_filter against transcripts of a real kernel (golden/): FT-32..35, FT-63, FT-65, FT-66.

A step is `$ COMMAND`, `! ERROR` what it failed with, everything up to the next step its output. `echo` writes its text
and a newline, a token per write(2), as the shell does.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

import sandbox
from ftrace.core.filters.set_ftrace_filter import FilterFile, read_filter
from ftrace.tracing.files.tracing_on import read_tracing_on, write_tracing_on

GOLDEN = Path(__file__).parent / "golden"
LATER = re.compile(r"stacktrace|enable_event|kprobe|cat (trace|events/\S*)$")
"""Steps, and lines of their output, that are about what is not there yet."""
_ECHO = re.compile(r"echo '(.*)' (>>?) (set_ftrace_filter|tracing_on)(   # strictly one write\(2\))?")
_HIT = re.compile(r"hit (\w+) .*")


def steps(text):
    """(command, failure or '', output) of each step."""
    for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *lines = step.splitlines()
        failures = [line[2:] for line in lines if line.startswith("! ")]
        yield command, "".join(failures), [line for line in lines if not line.startswith("! ")]


def transcript(name):
    """Its steps, without what is not there yet."""
    for command, failure, output in steps((GOLDEN / f"{name}.txt").read_text()):
        if not LATER.search(command):
            yield command, failure, [line for line in output if not LATER.search(line)]


@pytest.fixture(scope="module", autouse=True)
def program():
    """The kernel's functions, by name and in its order."""
    names = next(transcript("sff-01-globs"))[2]
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


def outcome(program, command):
    """Failure and output of a step."""
    if match := _ECHO.fullmatch(command):
        if match[3] == "tracing_on":
            write_tracing_on(match[1])
            return "", []
        return echo(match[1], match[2] == ">>", bool(match[4])), []
    if match := _HIT.fullmatch(command):
        program[f"__sys_{match[1]}"]()
        return "", []
    if command == "cat tracing_on":
        return "", read_tracing_on().splitlines()
    return "", shown(notrace=command.endswith("notrace"))


def compare(program, compared):
    """The steps that came out otherwise, and how many there were."""
    answered = [(command, expected, list(outcome(program, command))) for command, *expected in compared]
    return [step for step in answered if step[1] != step[2]], len(answered)


def test_ft32_ft33_ft35_ft63_ft66_the_kernels_answers(program):
    _, *compared = transcript("sff-01-globs")
    wrong, done = compare(program, compared)
    assert not wrong and done > 40


def test_ft64_ft65_ft66_the_kernels_answers_to_commands(program):
    """Before the last step but one events come in, which are not there yet."""
    wrong, done = compare(program, transcript("sff-03-commands"))
    assert not wrong and done > 25
    FilterFile().close()
    echo("!*:traceoff:0", append=True, once=False)
    assert read_filter() == "#### all functions enabled ####\n"
