"""The command line is run as users run it: in a process of its own, with a time limit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from command import CRASH, ENDLESS, EXITS, HAS_COMPILER, HELLO, IR, SPIN, C, fprobe


@pytest.fixture(scope="session")
def run():
    """`command.fprobe`."""
    return fprobe


@pytest.fixture
def compiler():
    """Needed by tests that load C."""
    if not HAS_COMPILER:
        pytest.skip("there is no C compiler")


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """A directory with prog.ll, prog.c, crash.ll, endless.ll, spin.ll, bad.ll and bad.c."""
    directory = tmp_path_factory.mktemp("programs")
    sources = {
        "prog.ll": IR, "prog.c": C, "crash.ll": CRASH, "endless.ll": ENDLESS, "spin.ll": SPIN, "exits.ll": EXITS,
        "hello.ll": HELLO,
        "bad.ll": "define i64 @f(i64 %n) { ret i64 %m }\n", "bad.c": "int main(void) { return x; }\n",
    }  # fmt: skip
    for name, text in sources.items():
        (directory / name).write_text(text)
    return directory
