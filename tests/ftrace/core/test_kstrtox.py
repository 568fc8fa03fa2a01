from __future__ import annotations

import errno

import pytest

from ftrace.core.kstrtox import kstrtobool, kstrtoll, kstrtouint, kstrtoull, simple_strtoul


@pytest.mark.parametrize(
    "text, base, value",
    [
        ("0", 0, 0),
        ("+7", 0, 7),
        ("0x1F", 0, 31),
        ("017", 0, 15),
        ("12\n", 0, 12),
        ("017", 10, 17),
        (str((1 << 64) - 1), 0, (1 << 64) - 1),
    ],
)
def test_numbers_that_are_written_so(text, base, value):
    assert kstrtoull(text, base) == value


@pytest.mark.parametrize("text", ["", "+", "-1", "08", "0x", "0xg", " 1", "1 ", "1\n\n", "1a", "++1", "१"])
def test_text_that_is_no_unsigned_number(text):
    with pytest.raises(OSError) as raised:
        kstrtoull(text)
    assert raised.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    "call, text",
    [
        (kstrtoull, str(1 << 64)),
        (kstrtoull, "9" * 5000),
        (kstrtoull, "9" * 20 + ")"),
        (kstrtoll, str(1 << 63)),
        (kstrtoll, str(-(1 << 63) - 1)),
        (kstrtouint, str(1 << 32)),
    ],
)
def test_numbers_that_do_not_fit(call, text):
    with pytest.raises(OSError) as raised:
        call(text)
    assert raised.value.errno == errno.ERANGE


def test_signed_numbers():
    assert [kstrtoll(text) for text in ("-5", "+5", "-0x10", str(-(1 << 63)))] == [-5, 5, -16, -(1 << 63)]
    with pytest.raises(OSError):
        kstrtoll("-+4")


def test_the_number_at_the_start_of_a_text():
    assert simple_strtoul("12:x", 10) == (12, ":x")
    assert simple_strtoul("x") == (0, "x")
    assert simple_strtoul(str(1 << 64) + "@") == (0, "@")


@pytest.mark.parametrize("text", ["", " y", "x", "2", "o", "ox", "Ox"])
def test_what_is_no_truth_value(text):
    with pytest.raises(OSError, match="is not a truth value") as raised:
        kstrtobool(text)
    assert raised.value.errno == errno.EINVAL


def test_kp92_words():
    assert all(kstrtobool(word) for word in ("y", "Y", "t", "T", "1", "on", "ON", "oN", "yes", "1\n"))
    assert not any(kstrtobool(word) for word in ("n", "N", "f", "F", "0", "of", "off", "OFF", "no", "0\n"))
