"""Decoding by capstone's library gives what capstone's package gives."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from sandbox import demo, load
from sandbox.x86_64 import decoding


def both(code: bytes, address: int) -> tuple[list[decoding.Decoded], list[decoding.Decoded]]:
    return list(decoding.decoded(code, address)), list(decoding._by_package(code, address))


def test_a_program_is_decoded_alike() -> None:
    program = load(demo.source(), name="demo.decoded")
    for text in program.texts:
        code = text.read(text.base, text.size)
        ours, theirs = both(code, text.base)
        assert ours == theirs and len(ours) > 1000
    program.unload()


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_are_decoded_alike(seed: int) -> None:
    code = random.Random(seed).randbytes(200)
    ours, theirs = both(code, 0xFFFF_FFFF_0000_0000)
    assert ours == theirs
    assert both(b"", 7) == ([], [])


def test_the_package_serves_where_the_library_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_library", lambda: None)
    assert list(decoding.decoded(b"\x90\xc3", 5)) == [(5, 1, "nop", ""), (6, 1, "ret", "")]


def test_the_package_is_not_imported() -> None:
    code = (
        "import sys; from sandbox.x86_64.decoding import decoded; print(*decoded(b'\\x90'), 'capstone' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split()[-1] == "False" and "nop" in done.stdout


@pytest.mark.parametrize("seed", range(20))
def test_one_instruction_is_decoded_like_the_first_of_many(seed: int) -> None:
    code = random.Random(seed).randbytes(15)
    expected = next(decoding._by_package(code, 0x1000), None)
    assert decoding.first_decoded(code, 0x1000) == expected
    assert decoding.first_decoded(b"", 0) is None
