"""Fingerprints that are known without reading: of our own units, until one of our files changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from native_machine import define

import sandbox
from sandbox.native import Unit
from sandbox.native.back import compile
from sandbox.native.back.fingerprint import fingerprint
from sandbox.native.unit import Assembly
from sandbox.threads import tasks

ROOT = Path(sandbox.__file__).parent.parent
ASK = """
import sys, sandbox
from sandbox.threads import tasks
from sandbox.compile.cache import Cache
from sandbox.native import Unit
from sandbox.native.back.compile import cached_fingerprint
from pathlib import Path

sandbox.IMPORTED += int(sys.argv[2])
function = tasks.task_get
if sys.argv[3:]:
    from sandbox_of_mine import function
key = cached_fingerprint(Unit("own", [function]), 2, Cache(Path(sys.argv[1])))
print(key, "sandbox.native.back.fingerprint" in sys.modules)
"""
LATER = 10 * 10**9


class Shelf(dict[str, bytes]):
    def put(self, key: str, data: bytes) -> None:
        self[key] = data


@pytest.fixture
def loaded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing of ours had been edited within the last second before it was imported."""
    monkeypatch.setattr(sandbox, "IMPORTED", time.time_ns() + LATER)


@pytest.mark.usefixtures("loaded_later")
def test_a_unit_of_ours_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, unit = Shelf(), Unit("own", [tasks.task_get])
    assert compile.cached_fingerprint(unit, 2, shelf) == fingerprint(unit, 2)
    monkeypatch.setattr(compile, "_read", lambda *_: pytest.fail("read again"))
    monkeypatch.setattr(sys, "version_info", (*sys.version_info[:2], 99, "final", 0))  # of the same code
    assert compile.cached_fingerprint(Unit("own", [tasks.task_get]), 2, shelf) == fingerprint(unit, 2)


@pytest.mark.usefixtures("loaded_later")
def test_whatever_makes_another_unit_is_read_anew() -> None:
    shelf, own = Shelf(), [tasks.task_get]
    made = [Assembly("; {}".format, (number,)) for number in (1, 2)]
    units = [Unit("own", own), Unit("other", own), Unit("own", own, checked=True), Unit("own", own, red_zone=False)]
    units += [Unit("own", []), Unit("own", own, llvm="; text"), *(Unit("own", own, assembly=text) for text in made)]
    keys = {compile.cached_fingerprint(unit, 2, shelf) for unit in units} | {
        compile.cached_fingerprint(units[0], "ir", shelf)
    }
    assert len(keys) == len(units) + 1 == len(shelf)


@pytest.mark.usefixtures("loaded_later")
def test_functions_of_users_are_always_read() -> None:
    shelf, unit = Shelf(), Unit("theirs", [define("@native\ndef f(a: u64) -> u64:\n    return a\n")["f"]])
    assert compile.cached_fingerprint(unit, 2, shelf) == fingerprint(unit, 2)
    assert not shelf


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages, at a place of their own."""
    for name in ("sandbox", "ftrace", "kprobes", "fprobe"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def ask(copy: Path, later: int = LATER, *others: str) -> tuple[str, bool]:
    """The key that a fresh process finds, and whether it has read the sources."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", ASK, str(copy / "cache"), str(later), *others]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=60, check=True)
    key, has_read = done.stdout.split()
    return key, has_read == "True"


@pytest.mark.stress
def test_an_edit_is_noticed_even_if_length_and_date_stay(copy: Path) -> None:
    first, has_read = ask(copy)
    assert has_read and ask(copy) == (first, False)
    file = copy / "sandbox" / "threads" / "tasks.py"
    text, status = file.read_text(), file.stat()
    file.write_text(text.replace("CAPACITY = 2048", "CAPACITY = 4096"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    second, has_read = ask(copy)
    assert has_read and second != first and ask(copy) == (second, False)
    file.write_text(text)
    assert ask(copy) == (first, True), "what it was read as before"
    assert len(list((copy / "cache").iterdir())) == 1, "only what is known last is kept"


def test_files_that_may_have_changed_since_they_were_loaded_are_read(copy: Path) -> None:
    assert ask(copy, later=-60 * LATER)[1] and ask(copy, later=-60 * LATER)[1]
    assert not (copy / "cache").exists()


@pytest.mark.stress
def test_a_neighbour_whose_name_begins_like_ours_is_not_ours(copy: Path) -> None:
    mine = copy / "sandbox_of_mine.py"
    text = "from sandbox.native import native, u64\n\n@native\ndef function(a: u64) -> u64:\n    return a + {}\n"
    mine.write_text(text.format(1))
    first, has_read = ask(copy, LATER, "mine")
    assert has_read and ask(copy, LATER, "mine") == (first, True)
    mine.write_text(text.format(2))
    assert ask(copy, LATER, "mine")[0] != first
