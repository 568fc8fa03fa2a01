"""set_ftrace_filter and set_ftrace_notrace, `:mod:` requests, and ops that share them: FT-31, FT-63..66, FT-71."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import contextlib
import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isolation import isolated
from programs import is_patched, site_of

import sandbox
from ftrace.core.filters.set_ftrace_filter import (
    TOKEN_LIMIT,
    FilterFile,
    read_filter,
    register_ftrace_command,
    unregister_ftrace_command,
)
from ftrace.core.ops import (
    ftrace_ops,
    ftrace_ops_set_global_filter,
    ftrace_set_filter,
    register_ftrace_function,
    unregister_ftrace_function,
)
from ftrace.core.ops_flags import FTRACE_OPS_FL_IPMODIFY
from ftrace.core.tracer import tracer
from sandbox.loading.module import ModuleState

EVERYTHING = "#### all functions enabled ####\n"
NOTHING = "#### no functions disabled ####\n"
LATER = "define i64 @late(i64 %x) { ret i64 %x }\ndefine i64 @later(i64 %x) { %r = add i64 %x, 9  ret i64 %r }\n"


@pytest.fixture(autouse=True)
def _empty_files():
    yield
    for notrace in (False, True):
        FilterFile(notrace=notrace).close()


def write(text, **options):
    with FilterFile(**options) as file:
        file.write_all(text)


def names(**options):
    """What the file reads, without the module's name."""
    return [line.split(" ")[0] for line in read_filter(**options).splitlines()]


def fails(code, call, *arguments, **options):
    with pytest.raises(OSError) as caught:
        call(*arguments, **options)
    assert caught.value.errno == code, caught.value


def traced(*flags):
    """A registered ops that shares the files' filters, and the list of what it is called for."""
    seen = []
    ops = ftrace_ops(lambda ip, *rest: seen.append(ip), *flags)
    ftrace_ops_set_global_filter(ops)
    register_ftrace_function(ops)
    return ops, seen


# -- writing ----------------------------------------------------------------------------------------------------


def test_ft63_tokens_are_separated_by_blanks_and_count_when_the_file_is_closed(program):
    file = FilterFile()
    file.write_all(" leaf\tother\n\0twice ")
    assert read_filter() == EVERYTHING
    file.close()
    assert names() == sorted(["leaf", "other", "twice"], key=lambda name: site_of(program, name))
    assert read_filter().splitlines()[0].endswith(f" [{program.name}]")


def test_ft63_each_write_takes_one_token(program):
    with FilterFile() as file:
        assert file.write("leaf other ") == 5
        assert file.write("  other twice") == 8
        assert file.write("   ") == 3
    assert names() == ["leaf", "other"]


def test_ft63_a_token_may_go_on_in_the_next_write_or_end_with_the_file(program):
    with FilterFile() as file:
        assert file.write("le") == 2
        assert file.write("af ") == 3
        file.write_all("oth")
        file.write_all("er")
    assert names() == ["leaf", "other"]


def test_ft63_truncating_starts_anew_and_appending_goes_on(program):
    write("leaf")
    write("other", append=True)
    assert names() == ["leaf", "other"]
    write("twice")
    assert names() == ["twice"]
    write("")
    assert read_filter() == EVERYTHING


def test_ft63_a_token_that_fails_ends_the_write_and_those_before_it_stay(program):
    file = FilterFile()
    fails(errno.EINVAL, file.write_all, "leaf nothing* other ")
    assert file.write("twice ") == 6
    file.close()
    assert names() == ["leaf", "twice"]


def test_ft63_at_the_end_of_the_file_a_failure_is_ignored(program):
    write("leaf nothing")
    assert names() == ["leaf"]


def test_ft63_a_token_has_a_limit(program):
    with FilterFile() as file:
        fails(errno.EINVAL, file.write, "x" * (TOKEN_LIMIT + 1))
        fails(errno.EINVAL, file.write_all, "x" * TOKEN_LIMIT + " ")  # long enough to match nothing
        file.write_all("leaf ")
    assert names() == ["leaf"]


def test_ft63_ft34_ft35_patterns_negations_and_numbers(program):
    everything = [location.name for location in tracer().table.everything().each()]
    write(f"l* !loop {1 + everything.index('twice')}")
    assert names() == ["leaf", "twice"]
    write(f"!{1 + everything.index('twice')}", append=True)
    assert names() == ["leaf"]
    fails(errno.EINVAL, write, "0 ")
    fails(errno.EINVAL, write, f"{len(everything) + 1} ")


def test_ft63_writing_to_a_dead_ftrace(program, monkeypatch):
    monkeypatch.setattr(tracer(), "dead", True)
    fails(errno.ENODEV, FilterFile)
    fails(errno.ENODEV, read_filter)
    monkeypatch.undo()


def test_ft31_ops_share_the_files_and_live_changes_reach_them_all(program):
    write("leaf")
    (first, seen), (second, seen_too) = traced(), traced()
    program["twice"](1)
    write("other")
    assert not is_patched(program, "leaf") and is_patched(program, "other")
    program["twice"](1)
    program["other"](1)
    write("other", notrace=True)
    program["other"](1)
    assert not is_patched(program, "other")
    ftrace_set_filter(first, "leaf")  # its filter is the files'
    assert names() == ["leaf", "other"]
    for ops in (first, second):
        unregister_ftrace_function(ops)
    leaf, other = site_of(program, "leaf"), site_of(program, "other")
    assert seen == seen_too == [leaf, leaf, other]


def test_ft31_only_before_the_first_use(program):
    ops = ftrace_ops(lambda *hit: None)
    ftrace_set_filter(ops, "leaf")
    ftrace_ops_set_global_filter(ops)
    ftrace_set_filter(ops, "other")
    assert read_filter() == EVERYTHING


def test_ft63_a_change_that_an_ops_does_not_allow_leaves_the_filter_as_it_was(program):
    write("leaf")
    shared, _ = traced(FTRACE_OPS_FL_IPMODIFY)
    own = ftrace_ops(lambda *hit: None, FTRACE_OPS_FL_IPMODIFY)
    ftrace_set_filter(own, "other")
    register_ftrace_function(own)
    fails(errno.EBUSY, write, "other")
    assert names() == ["leaf"] and is_patched(program, "leaf")
    unregister_ftrace_function(own)
    unregister_ftrace_function(shared)


def test_ft28_ipmodify_takes_no_notrace_from_a_file_either(program):
    own = ftrace_ops(lambda *hit: None, FTRACE_OPS_FL_IPMODIFY)
    write("leaf", ops=own)
    assert names(ops=own) == ["leaf"]
    file = FilterFile(own, notrace=True)
    file.write_all("leaf ")
    fails(errno.EINVAL, file.close)
    assert names(ops=own, notrace=True) == NOTHING.split(" ")[:1] and not own.notrace_hash


# -- reading ----------------------------------------------------------------------------------------------------


def test_ft66_empty_files(program):
    assert read_filter() == EVERYTHING and read_filter(notrace=True) == NOTHING


def test_ft66_functions_in_table_order_then_requests(program):
    write("twice leaf f:mod:nosuch :mod:another")
    *functions, second, first = read_filter().splitlines()
    assert [line.split(" ")[0] for line in functions] == ["leaf", "twice"]
    assert (first, second) == ("f:mod:nosuch", ":mod:another")


def test_ft66_with_requests_alone(program):
    write("f:mod:nosuch")
    assert read_filter() == "f:mod:nosuch\n"
    write("f:mod:nosuch", notrace=True)
    assert read_filter(notrace=True) == NOTHING + "f:mod:nosuch\n"


# -- modules ----------------------------------------------------------------------------------------------------


@pytest.fixture
def later():
    module = sandbox.load(LATER, name="later_module")
    yield module
    module.unload()


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("la*:mod:later_module", ["late", "later"]),
        ("later:mod:later*", ["later"]),
        (":mod:later_module", ["late", "later"]),
        ("*:mod:later_module", ["late", "later"]),
        ("la*:mod:", ["late", "later"]),
        ("la*:mod:*", ["late", "later"]),
        ("la*:mod:!basic*", ["late", "later"]),
        ("leaf:mod", ["leaf"]),
        ("leaf:mod:!later_module", ["leaf"]),
    ],
)
def test_ft64_functions_of_modules(program, later, token, expected):
    write(f"{token} ")
    assert names() == expected


def test_ft64_functions_of_a_module_are_taken_out(program, later):
    write("* !:mod:later_module")
    assert "leaf" in names() and "late" not in names()


def test_ft64_a_module_that_is_there_without_a_match(program, later):
    fails(errno.EINVAL, write, "leaf:mod:later_module ")
    assert read_filter() == EVERYTHING


@pytest.mark.parametrize("module", ["!", "!*"])
def test_ft64_no_function_here_is_in_no_module(program, module):
    write(f"leaf:mod:{module} ")  # kept as a request, as for any module that is not there
    assert read_filter() == f"leaf:mod:{module}\n"


def test_ft64_requests_can_be_forgotten(program):
    write("f:mod:nosuch g:mod:nosuch h:mod:other ")
    write("!f:mod:nosuch ", append=True)
    assert read_filter() == "h:mod:other\ng:mod:nosuch\n"
    fails(errno.EINVAL, write, "!f:mod:nosuch ", append=True)
    write("!*:mod:nosuch ", append=True)
    assert read_filter() == "h:mod:other\n"
    write("")
    assert read_filter() == EVERYTHING


def test_ft64_ft71_ft24_a_request_is_carried_out_when_the_module_comes(program):
    write("later:mod:later_module")
    write("late:mod:later_module", notrace=True)
    ops, seen = traced()
    program["leaf"](1)
    assert not is_patched(program, "leaf")
    told = []

    def notifier(event, module):
        if event is ModuleState.COMING and module.name == "later_module":
            told.append(is_patched(module, "later"))

    sandbox.register_module_notifier(notifier)
    module = sandbox.load(LATER, name="later_module")
    sandbox.unregister_module_notifier(notifier)
    assert told == [True], "others are told when the site is patched"
    assert is_patched(module, "later") and not is_patched(module, "late")
    module["late"](1)
    assert module["later"](1) == 10
    assert seen == [site_of(module, "later")]
    assert read_filter() == "later [later_module]\n"
    assert read_filter(notrace=True) == "late [later_module]\n"
    module.unload()
    again = sandbox.load(LATER, name="later_module")  # the request was for once, and the filter for what has gone
    assert not is_patched(again, "later")
    unregister_ftrace_function(ops)
    again.unload()


def test_ft64_ft25_a_reset_forgets_that_modules_are_waited_for(program):
    ops, seen = traced()
    write("f:mod:nosuch")
    program["leaf"](1)
    assert not seen
    ftrace_set_filter(ops, None, reset=True)
    program["leaf"](1)
    assert seen
    unregister_ftrace_function(ops)


# -- commands ---------------------------------------------------------------------------------------------------


def test_ft65_commands_can_be_registered(program):
    called = []

    def command(file, func, name, parameter):
        called.append((file.notrace, func, name, parameter))

    fails(errno.EINVAL, write, "leaf:note:3 ")
    register_ftrace_command("note", command)
    fails(errno.EBUSY, register_ftrace_command, "note", command)
    fails(errno.EBUSY, register_ftrace_command, "mod", command)
    write("leaf:note l*:note:3 leaf:note:4:5 ")
    write("leaf:note", notrace=True)
    unregister_ftrace_command("note")
    fails(errno.ENODEV, unregister_ftrace_command, "note")
    assert called == [
        (False, "leaf", "note", None),
        (False, "l*", "note", "3"),
        (False, "leaf", "note", "4:5"),
        (True, "leaf", "note", None),
    ]


# -- any text, in any pieces ------------------------------------------------------------------------------------

_TOKENS = st.sampled_from(["leaf", "l*", "!leaf", "*", "!*o*", "nothing", "1", "0", ":mod:nosuch", "!x:mod:y", "x:y:z"])
_BLANKS = st.text(" \t\n\0", min_size=1, max_size=3)


def check_pieces(parts, data):
    """As long as no token fails: a write that fails drops the rest of what it was given."""
    text = "".join(token + blank for token, blank in parts)
    whole = FilterFile()
    failed = False
    try:
        whole.write_all(text)
    except OSError as error:
        assert error.errno == errno.EINVAL
        failed = True
    whole.close()
    expected = read_filter()
    pieces = FilterFile()
    position = 0
    try:
        while position < len(text):
            size = data.draw(st.integers(1, 5))
            pieces.write_all(text[position : position + size])
            position += size
    except OSError:
        assert failed
    pieces.close()
    assert read_filter() == expected


@pytest.mark.parametrize("examples", [6, pytest.param(200, marks=pytest.mark.stress)])
def test_ft63_the_pieces_in_which_a_text_is_written_make_no_difference(program, examples):
    check = given(st.lists(st.tuples(_TOKENS, _BLANKS), max_size=6), st.data())(check_pieces)
    settings(max_examples=examples, deadline=None)(check)()


@isolated
def test_requests_and_modules_that_come_do_not_wait_for_each_other():
    """A file is written while modules are loaded and unloaded in another thread."""
    import threading

    stop = threading.Event()

    def load():
        while not stop.is_set():
            sandbox.load(LATER, name="coming").unload()

    thread = threading.Thread(target=load)
    thread.start()
    for _ in range(150):
        with FilterFile() as file, contextlib.suppress(OSError):
            file.write_all("late:mod:coming nothing:mod:coming x:mod:other ")
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
