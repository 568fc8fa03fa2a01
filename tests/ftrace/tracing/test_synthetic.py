"""Synthetic events: definition, listing, format, deletion, and what is refused."""

from __future__ import annotations

import errno

import pytest

from ftrace.tracing.events import dynevent, synthetic
from ftrace.tracing.events.registry import event_registry
from ftrace.tracing.instances.error_log import error_log


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(dynevent, "_types", [synthetic.synthetic_lines])
    error_log.clear()
    yield
    dynevent.release_all(synthetic.synthetic_lines)
    error_log.clear()


def number(call, line):
    with pytest.raises(OSError) as raised:
        call(line)
    return raised.value.errno


def test_definition_listing_and_format():
    synthetic.run_line("lat u64 d; int fd")
    dynevent.create_dyn_event("s:synthetic/text char c[]; char fixed[16]; unsigned  int n; long[] stack;")
    dynevent.create_dyn_event("s:old u64 a pid_t b")
    assert synthetic.show() == (
        "lat\tu64 d; int fd\ntext\tchar[] c; char[16] fixed; unsigned int n; long[] stack\nold\tu64 a; pid_t b\n"
    )
    assert dynevent.show().startswith("s:synthetic/lat\tu64 d; int fd\n")
    assert (
        event_registry.find("synthetic", "lat")
        .format()
        .endswith(
            "\tfield:u64 d;\toffset:8;\tsize:8;\tsigned:0;\n\tfield:int fd;\toffset:16;\tsize:4;\tsigned:1;\n\n"
            'print fmt: "d=%llu, fd=%d", REC->d, REC->fd\n'
        )
    )
    text = event_registry.find("synthetic", "text")
    assert [(field.type, field.offset, field.size, field.signed) for field in text.fields] == [
        ("__data_loc char[]", 8, 8, True), ("char[16]", 16, 16, True), ("unsigned int", 272, 4, False),
        ("__data_loc long[]", 280, 8, True),
    ]  # fmt: skip
    assert text.print_fmt == (
        '"c=%s, fixed=%s, n=%u, stack=%s", __get_str(c), REC->fixed, REC->n, __get_stacktrace(stack)'
    )


def test_deletion():
    for line in ("a int x", "b int x", "c int x", "d int x"):
        synthetic.run_line(line)
    synthetic.run_line("!a")
    synthetic.run_line("!b int x")
    dynevent.create_dyn_event("-:synthetic/c")
    dynevent.create_dyn_event("!s:d int x")
    assert synthetic.show() == ""
    assert number(synthetic.run_line, "!a") == errno.ENOENT


@pytest.mark.parametrize(
    "command, message",
    [
        ("^ev", "Command must be of the form: <name> field[;field] ..."),
        ("^ev int", "Command must be of the form: <name> field[;field] ..."),
        ("^e-v int x", "Illegal name"),
        ("ev int ^x-y", "Illegal name"),
        ("ev ^u99 x", "Invalid type"),
        ("ev int ^x[]", "Invalid type"),
        ("ev char ^x[257]", "Invalid array specification"),
        ("ev char ^x[a]", "Invalid array specification"),
        ("ev int x; ^char", "Invalid field"),
        ("ev int x; ^unsigned int", "Incomplete type"),
        ("^taken int y", "Event already exists"),
    ],
)
def test_what_is_refused_and_where_the_caret_is(command, message):
    synthetic.run_line("taken int x")
    line = command.replace("^", "")
    wrong = number(synthetic.run_line, line)
    assert wrong == (errno.EEXIST if "taken" in line else errno.EINVAL)
    first, second, caret = error_log.read().splitlines()
    assert first.endswith(f"] synthetic_events: error: {message}") and second == f"  Command: {line}"
    expected = command.index("^") if message != "Invalid type" or "[" not in line else line.index("int")
    assert caret == " " * (11 + expected) + "^"


def test_lines_of_dynamic_events():
    assert number(dynevent.create_dyn_event, "s:other/ev int x") == errno.EINVAL
    assert "Command must be of the form: s or -:[synthetic/]<name>" in error_log.read()
    assert number(dynevent.create_dyn_event, "s ev int x") == errno.EINVAL
    assert number(dynevent.create_dyn_event, "s:ev " + "int x;" * 65 + "nosuch y") == errno.EINVAL
    assert "Too many fields" in error_log.read()


@pytest.mark.parametrize(
    "line, message, culprit",
    [
        ("ev char[257] x", "Invalid type", "char[257]"),
        ("ev char[a] x", "Invalid type", "char[a]"),
        ("ev char x[a]", "Invalid array specification", "x[a]"),
    ],
)
def test_te8_9_a_wrong_length_is_a_wrong_type_unless_it_follows_the_name(line, message, culprit):
    assert number(synthetic.run_line, line) == errno.EINVAL
    first, _, caret = error_log.read().splitlines()
    assert first.endswith(message) and caret == " " * (11 + line.index(culprit)) + "^"


def test_te8_9_any_slash_is_taken_for_the_groups():
    assert number(dynevent.create_dyn_event, "s:ev int a/b") == errno.EINVAL
    assert "Command must be of the form: s or -:[synthetic/]<name>" in error_log.read()


def test_te8_9_what_is_found_elsewhere_in_the_record_is_signed():
    synthetic.run_line("stacks unsigned long[] x; unsigned char[] y")
    assert [field.signed for field in event_registry.find("synthetic", "stacks").fields] == [True, True]


def test_te8_9_a_stack_may_have_any_length():
    synthetic.run_line("stacks unsigned long a[16]; long b[x")
    event = event_registry.find("synthetic", "stacks")
    assert [field.type for field in event.fields] == ["__data_loc unsigned long[16]", "__data_loc long[x"]
    assert synthetic.show() == "stacks\tunsigned long[16] a; long[x b\n"


def test_te8_9_error_log_keeps_255_characters_of_a_definition():
    line = "long_one " + "; ".join(f"int field_{i}" for i in range(40)) + "; nosuch last"
    assert number(synthetic.run_line, line) == errno.EINVAL
    _, command, caret = error_log.read().splitlines()
    assert command == f"  Command: {line[:255]}" and caret == " " * 11 + "^"


def test_te8_9_truncation_deletes_up_to_the_first_enabled_event(request):
    for line in ("a int x", "b int x", "c int x"):
        synthetic.run_line(line)
    enabled = event_registry.find("synthetic", "b")
    request.addfinalizer(lambda: enabled.set_enabled(False))
    enabled.set_enabled(True)
    assert number(dynevent.release_all, synthetic.synthetic_lines) == errno.EBUSY
    assert synthetic.show() == "b\tint x\nc\tint x\n"
    enabled.references += 1
    assert number(dynevent.release_all, synthetic.synthetic_lines) == errno.EBUSY
    enabled.references -= 1
