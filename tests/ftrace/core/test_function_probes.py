"""The commands of set_ftrace_filter that act on functions, and tracing_on: FT-65, FT-66."""

from __future__ import annotations

import errno
import threading
from random import Random

import pytest
from programs import is_patched

import fprobe
import sandbox
from fprobe.calls.log import log_calls
from ftrace.core.filters.function_probes import probe_lines
from ftrace.core.filters.lookup import enabled_functions
from ftrace.core.filters.set_ftrace_filter import FilterFile, read_filter, register_ftrace_command
from ftrace.core.ops import ftrace_ops, ftrace_set_filter
from ftrace.core.tracer import detach_all, tracer
from ftrace.tracing.files.tracing_on import read_tracing_on, tracing_is_on, tracing_off, tracing_on, write_tracing_on

EVERYTHING = "#### all functions enabled ####\n"


@pytest.fixture(autouse=True)
def _no_commands():
    yield
    detach_all()
    tracing_on()
    assert not list(probe_lines())


def write(text, **options):
    with FilterFile(append=True, **options) as file:
        file.write_all(f"{text} ")


def fails(code, call, *arguments, **options):
    with pytest.raises(OSError) as caught:
        call(*arguments, **options)
    assert caught.value.errno == code, caught.value


def listed():
    return list(probe_lines())


# -- tracing_on -------------------------------------------------------------------------------------------------


def test_ft65_tracing_on_takes_numbers():
    for text, reads in (("0", "0\n"), ("1\n", "1\n"), ("00", "0\n"), ("17", "1\n")):
        write_tracing_on(text)
        assert read_tracing_on() == reads and tracing_is_on() is (reads == "1\n")
    for text in ("", "\n", "on", "-1", "0x1", "1 1"):
        fails(errno.EINVAL, write_tracing_on, text)
    assert tracing_is_on()


def test_ft65_while_tracing_is_off_probes_are_hit_and_nothing_is_recorded(program):
    calls = fprobe.Record()
    recorder = log_calls("leaf")
    with fprobe.attach("leaf", action=calls) as probe:
        program["leaf"](1)
        tracing_off()
        program["leaf"](2)
        tracing_on()
        program["leaf"](3)
        assert probe.counts.hits == 3 and calls.written == 2
        assert recorder.order == ["> leaf", "< leaf", "> leaf", "< leaf"]
    recorder.probe.detach()
    calls.close()


# -- what a command does ----------------------------------------------------------------------------------------


def test_ft65_traceoff_and_traceon_act_when_their_functions_are_entered(program):
    write("leaf:traceoff other:traceon")
    program["nine"](*range(9))
    assert tracing_is_on()
    program["leaf"](1)
    assert not tracing_is_on()
    program["leaf"](1)
    program["other"](1)
    assert tracing_is_on()


def test_ft65_a_count_runs_down_only_where_something_changes(program):
    write("leaf:traceoff:2")
    for left in (1, 0):
        tracing_on()
        for _ in range(3):
            program["leaf"](1)
        assert not tracing_is_on() and listed() == [f"leaf:traceoff:count={left}"]
    tracing_on()
    program["leaf"](1)
    assert tracing_is_on() and listed() == ["leaf:traceoff:count=0"]


def test_ft65_each_function_has_a_count_of_its_own(program):
    write("leaf:traceoff:1 other:traceoff:3")
    for _ in range(3):
        tracing_on()
        program["leaf"](1)
        program["other"](1)
    assert listed() == ["leaf:traceoff:count=0", "other:traceoff:count=1"]


def test_ft65_a_count_of_nothing_never_acts(program):
    write("leaf:traceoff:0 other:traceoff:")
    program["leaf"](1)
    program["other"](1)
    assert tracing_is_on() and listed() == ["leaf:traceoff:count=0", "other:traceoff:count=-1"]


def test_ft65_threads_do_not_count_a_change_twice(program):
    write("leaf:traceoff:1000000 other:traceon:1000000")

    def call():
        for _ in range(3000):
            program["leaf"](1)
            program["other"](1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    on, off = (1_000_000 - int(line.rpartition("=")[2]) for line in listed())
    assert 0 < off < 12_000
    assert off - on == (0 if tracing_is_on() else 1)


def test_ft65_functions_may_be_added_while_they_are_hit(program):
    """The table of counts grows under threads that look into it."""
    names = [f"grown{n}" for n in range(300)]
    grown = sandbox.load("".join(f"define void @{name}() {{ ret void }}\n" for name in names), name="grown")
    write("grown0:traceoff:1000000")
    stop = threading.Event()

    def call():
        while not stop.is_set():
            grown["grown0"]()
            tracing_on()

    thread = threading.Thread(target=call)
    thread.start()
    for name in names[1:]:
        write(f"{name}:traceoff:7")
    stop.set()
    thread.join()
    first, *rest = listed()
    assert int(first.rpartition("=")[2]) < 1_000_000
    assert sorted(rest) == sorted(f"{name}:traceoff:count=7" for name in names[1:])
    for name in names[1:]:
        tracing_on()
        grown[name]()
        assert not tracing_is_on()
    write("!:traceoff:0")
    grown.unload()


@pytest.mark.stress
def test_ft65_threads_that_add_and_remove(program):
    """Every registration has a line, and what is taken back is gone."""
    stop, wrong = threading.Event(), []

    def call():
        while not stop.is_set():
            program["twice"](1)
            program["other"](1)

    def change(seed):
        random = Random(seed)
        for _ in range(120):
            command = f"{random.choice(['leaf', 'l*', 'other', '*'])}:traceo{random.choice(['n', 'ff', 'ff:3'])}"
            try:
                write(random.choice(["!", ""]) + command)
            except OSError as error:
                wrong.extend([error] if error.errno not in (errno.EINVAL, errno.ENODEV) else [])

    threads = [threading.Thread(target=change, args=(seed,)) for seed in range(4)]
    callers = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads + callers:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    for thread in callers:
        thread.join()
    assert not wrong
    kinds = {line.partition(":")[2].partition("=")[0] for line in listed()}
    assert len(tracer().enabled) == len(kinds)
    detach_all()
    assert not tracer().enabled and not is_patched(program, "leaf")


# -- what is listed ---------------------------------------------------------------------------------------------


def test_ft66_commands_come_last_and_the_newest_kind_first(program):
    write("leaf:traceoff:5 other:traceon leaf:traceon:1 other:traceoff:7 f:mod:nosuch")
    assert read_filter() == (
        "f:mod:nosuch\nleaf:traceon:count=1\nother:traceon:unlimited\nleaf:traceoff:count=5\nother:traceoff:count=7\n"
    )
    write("!f:mod:nosuch")
    assert read_filter().startswith(EVERYTHING + "leaf:traceon:count=1\n")
    assert read_filter(notrace=True) == "#### no functions disabled ####\n"
    assert read_filter(ftrace_ops()) == EVERYTHING


def test_ft66_the_file_may_be_truncated_under_them(program):
    write("leaf:traceoff")
    FilterFile().close()
    assert read_filter() == EVERYTHING + "leaf:traceoff:unlimited\n"


def test_ft65_ft74_their_sites_lead_to_the_kernels_callback(program):
    write("leaf:traceoff other:traceoff")
    assert is_patched(program, "leaf") and not is_patched(program, "nine")
    first = enabled_functions().splitlines()[0]
    assert first.startswith(f"leaf [{program.name}] (1)") and "->function_trace_probe_call+0x0/0x" in first
    assert len(tracer().enabled) == 1


# -- adding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "left"),
    [
        ("leaf:traceoff:010", 8),
        ("leaf:traceoff:0x10", 16),
        ("leaf:traceoff:+3", 3),
        ("leaf:traceoff:9223372036854775808", -(1 << 63)),
    ],
)
def test_ft65_counts_are_c_numbers(program, token, left):
    write(token)
    assert listed() == [f"leaf:traceoff:count={left}"]


@pytest.mark.parametrize(
    ("token", "code"),
    [
        ("leaf:traceoff:x", errno.EINVAL),
        ("leaf:traceoff:-1", errno.EINVAL),
        ("leaf:traceoff:3:4", errno.EINVAL),
        ("leaf:traceoff:08", errno.EINVAL),
        ("leaf:traceoff:1_0", errno.EINVAL),
        ("leaf:traceoff:18446744073709551616", errno.ERANGE),
        ("nothing*:traceoff", errno.EINVAL),
        (":traceoff", errno.EINVAL),
        ("0:traceoff", errno.EINVAL),
        ("!!leaf:traceoff", errno.EINVAL),
        ("leaf:", errno.EINVAL),
        ("leaf:enable_event:kprobes:ke", errno.EINVAL),
        ("leaf:disable_event:kprobes:ke", errno.EINVAL),
    ],
)
def test_ft65_what_is_refused(program, token, code):
    fails(code, write, token)
    assert read_filter() == EVERYTHING and not is_patched(program, "leaf")


def test_ft65_not_on_notrace_and_not_on_an_ops_of_its_own(program):
    fails(errno.EINVAL, write, "leaf:traceoff", notrace=True)
    fails(errno.EINVAL, write, "!leaf:traceoff", notrace=True)
    own = ftrace_ops(print)
    ftrace_set_filter(own, "leaf")
    fails(errno.ENODEV, write, "leaf:traceoff", ops=own)


def test_ft65_the_same_again_is_refused_and_more_functions_are_added(program):
    write("leaf:traceoff:3")
    fails(errno.EINVAL, write, "leaf:traceoff:4")
    write("leaf:traceoff")  # another kind
    fails(errno.EINVAL, write, "leaf:traceoff")
    write("*l*:traceoff:5")
    lines = listed()
    assert lines[0] == "leaf:traceoff:unlimited" and "leaf:traceoff:count=3" in lines
    assert {"loop:traceoff:count=5", "factorial:traceoff:count=5", "apply:traceoff:count=5"} <= set(lines)


def test_ft65_by_position(program):
    names = [location.name for location in tracer().table.everything().each()]
    write(f"{1 + names.index('other')}:traceon")
    assert listed() == ["other:traceon:unlimited"]
    fails(errno.ENODEV, write, f"!{1 + names.index('other')}:traceon")


def test_ft65_names_of_commands_are_taken():
    for name in ("mod", "traceon", "traceoff"):
        fails(errno.EBUSY, register_ftrace_command, name, print)


# -- removing ---------------------------------------------------------------------------------------------------


def test_ft65_each_form_removes_its_kind(program):
    write("leaf:traceoff leaf:traceoff:3 other:traceoff:3")
    write("!leaf:traceoff:0")
    assert listed() == ["other:traceoff:count=3", "leaf:traceoff:unlimited"]
    write("!leaf:traceoff")
    assert listed() == ["other:traceoff:count=3"]
    assert not is_patched(program, "leaf") and is_patched(program, "other")
    write("!o*:traceoff:whatever")
    assert not tracer().enabled


@pytest.mark.parametrize("everything", ["!*:traceoff", "!:traceoff"])
def test_ft65_all_functions_at_once(program, everything):
    write("l*:traceoff other:traceoff")
    write(everything)
    assert not listed() and not is_patched(program, "leaf")


def test_ft65_what_is_not_there_cannot_be_removed(program):
    fails(errno.ENODEV, write, "!leaf:traceoff")
    write("leaf:traceoff:3")
    for token in ("!leaf:traceoff", "!other:traceoff:0", "!nothing*:traceoff:0", "!leaf:traceon:0"):
        fails(errno.ENODEV, write, token)
    assert listed() == ["leaf:traceoff:count=3"]


def test_ft65_a_function_that_comes_back_has_a_new_count(program):
    write("leaf:traceoff:1 other:traceoff:1")
    program["leaf"](1)
    write("!leaf:traceoff:0")
    write("leaf:traceoff:2")
    assert listed() == ["leaf:traceoff:count=2", "other:traceoff:count=1"]
    tracing_on()
    program["leaf"](1)
    assert not tracing_is_on()


def test_ft65_functions_go_with_their_module(program):
    late = sandbox.load("define void @late() { ret void }", name="late")
    write("late:traceoff:3 leaf:traceoff:3")
    late.unload()
    assert listed() == ["leaf:traceoff:count=3"]
    again = sandbox.load("define void @late() { ret void }", name="late")
    again["late"]()
    assert tracing_is_on() and listed() == ["leaf:traceoff:count=3"]
    again.unload()


def test_ft65_from_inside_a_handler(program):
    """Handlers write commands; what they take back is not waited for by themselves."""
    outcomes = []

    def entry(fp, ip, ret, regs, data):
        write("leaf:traceoff:1")
        write("!leaf:traceoff:0")
        outcomes.append(listed())

    with fprobe.attach("leaf", entry=entry) as probe:
        assert program["leaf"](1) == 2
        assert probe.counts.hits == 1
    assert outcomes == [[]]


def test_ft65_a_dead_ftrace_keeps_them(program, monkeypatch):
    write("leaf:traceoff:5")
    file = FilterFile(append=True)
    monkeypatch.setattr(tracer(), "dead", True)
    fails(errno.ENODEV, file.write, "other:traceoff ")
    fails(errno.ENODEV, file.write, "!leaf:traceoff:0 ")
    program["leaf"](1)
    assert not tracing_is_on() and listed() == ["leaf:traceoff:count=4"]
    monkeypatch.undo()
