"""What a program's strings and names hold reaches neither the terminal nor a file as it is: each has a text of its own."""

from __future__ import annotations

import codecs
import re

import pytest

from sandbox.process.printable import escaped, printable_line, quoted, styled

STRINGS = [
    b"\x1b]0;title\x07", b"\x1b[2J", b"\x80", rb"\x80", b"\\", rb"\\", b'"', b"\r", b"\n", rb"\n", b"\x7f",
    "\u0085\u2028\u200b".encode(),
    "\u00e4\u4e2d".encode(), b"\xe4\xb8", b"x" * 63 + b"\xc3\xa4", b"x...", b"'",
]  # fmt: skip


def program():
    def c(text):
        return '"' + "".join(f"\\{byte:03o}" for byte in text) + '"'

    calls = "\n".join(f"    say({c(text)}, {text[0]});" for text in STRINGS)
    return f"""
    #include <sys/prctl.h>
    __attribute__((noinline)) int say(const char *s, char letter) {{ return letter; }}
    int main(void) {{
        prctl(PR_SET_NAME, "\\033[31mname");
    {calls}
        return 0;
    }}
    """


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("say") / "say.c"
    path.write_text(program())
    return str(path)


def is_plain(text):
    return all(letter.isprintable() or letter in "\n\t" for letter in text)


@pytest.mark.parametrize("color", ["never", "always"])
def test_strings_of_a_trace_are_distinct_and_printable(run, source, color):
    found = run("trace", "say", "--program", source, "-q", "--color", color).out
    assert is_plain(re.sub(r"\x1b\[\d+m", "", found))
    shown = re.findall(r'say(?:\x1b\[0m)?\(s="(.*?)"(?:\.\.\.)?, letter', found)
    assert len(shown) == len(set(shown)) == len(STRINGS)
    assert [shown[0], shown[2], shown[3]] == [r"\x1b]0;title\x07", r"\x80", r"\\x80"]


def test_strings_in_json_are_the_programs_bytes(run, source):
    entries = [each for each in run("trace", "say", "--program", source, "--json").objects if each["type"] == "entry"]
    given = [each["strings"]["s"].encode("utf-8", "surrogateescape") for each in entries]
    cut = [number for number, each in enumerate(entries) if each.get("cut") == ["s"]]
    assert [len(STRINGS[number]) for number in cut] == [65]
    assert given == [text[:63] if number in cut else text for number, text in enumerate(STRINGS)]


def test_strings_and_names_of_recorded_events(run, source, tmp_path):
    path = str(tmp_path / "trace.dat")
    run("record", "-e", "f:says say s=+0($arg1):string c=$arg2:char", "-o", path, "--program", source)
    lines = run("report", path).out
    assert is_plain(lines) and lines.count("says: ") == len(STRINGS) and r"\x1b[31mname-" in lines
    shown = re.findall(r's="(.*)" c=', lines)
    assert len(set(shown)) == len(STRINGS) and r"\x80" in shown and r"\\x80" in shown
    objects = run("report", path, "--json").objects
    assert [each["fields"]["s"].encode("utf-8", "surrogateescape") for each in objects] == STRINGS
    assert {each["comm"] for each in objects} == {"\x1b[31mname"}


def test_every_byte_has_a_text_of_its_own():
    texts = [bytes([byte]).decode("utf-8", "surrogateescape") for byte in range(256)]
    shown = [escaped(text) for text in texts]
    assert len(set(shown)) == 256 and is_plain("".join(shown))
    for text in [*texts, "".join(texts), r"\x80", "\u2028", "\u4e2d"]:
        inside = quoted(text)[1:-1].encode("utf-8", "surrogateescape")
        assert codecs.escape_decode(inside)[0].decode("utf-8", "surrogateescape") == text


def test_a_line_keeps_our_styles_and_tabs_only():
    line = styled("na\x1b[31mme", 1) + "\t\x1b[2Jx\udc80\x07\x1b[0m"
    assert printable_line(line) == "\x1b[1mna\\x1b[31mme\x1b[0m\t\\x1b[2Jx\\x80\\x07\\x1b[0m"
