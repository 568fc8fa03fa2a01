"""Hist triggers (TE-8.1 to 8.10): definitions, messages, counting by native hits, and the text of the hist file."""

from __future__ import annotations

import ctypes
import errno
import threading

import pytest
from event_files import Instance, hit
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrace.hit.events import map_records, records, synthetic_records, table_records
from ftrace.hit.events.table_records import HEADER, TableHeader
from ftrace.tracing.events.filters.fields import PlainField
from ftrace.tracing.events.hist.hist_trigger import read_hists, register_hist_command
from ftrace.tracing.events.hist.per_thread_table import PerThreadHistogram
from ftrace.tracing.events.hist.text import heap_sort
from ftrace.tracing.events.triggers.trigger_file import AVAILABLE
from sandbox.native import Unit
from sandbox.native.back.compile import compile_unit
from sandbox.native.back.verify import verify_object

register_hist_command()


@pytest.fixture
def instance():
    return Instance()


@pytest.fixture
def event(instance):
    made = instance.event("h")
    yield made
    made.triggers.remove_all()


def listed(event, text):
    event.triggers.truncate()
    event.triggers.write(text)
    return event.triggers.read().rstrip("\n")


def refused(event, text):
    before = event.triggers.read()
    event.triggers.instance.log.clear()
    with pytest.raises(OSError) as caught:
        event.triggers.write(text)
    assert event.triggers.read() == before
    return caught.value.errno, [(message, position) for _, message, _, position in event.triggers.instance.log]


def shown(event):
    """The entries and the totals of the only histogram."""
    text = read_hists(event.triggers)
    head, _, totals = text.partition("\nTotals:\n")
    numbers = [int(line.rpartition(" ")[2]) for line in totals.splitlines()]
    return head.partition("#\n\n")[2].splitlines(), numbers


def test_a_histogram_reads_as_the_kernels(event):
    assert event.triggers.read() == AVAILABLE
    event.triggers.write("hist:keys=fd:vals=bl:sort=bl.descending:size=256")
    for fd, bl in ((3, 10), (3, 20), (4, 5), (5, 1), (5, 1), (5, 1)):
        hit(event, fd=fd, bl=bl)
    assert read_hists(event.triggers) == (
        "# event histogram\n#\n"
        "# trigger info: hist:keys=fd:vals=hitcount,bl:sort=bl.descending:size=256 [active]\n#\n\n"
        "{ fd:          3 } hitcount:          2  bl:         30\n"
        "{ fd:          4 } hitcount:          1  bl:          5\n"
        "{ fd:          5 } hitcount:          3  bl:          3\n"
        "\nTotals:\n    Hits: 6\n    Entries: 3\n    Dropped: 0\n"
    )
    event.triggers.write("!hist:keys=fd:vals=bl:sort=bl.descending")
    assert read_hists(event.triggers) == ""


def test_two_histograms_are_separated_by_two_blank_lines(event):
    event.triggers.write("hist:keys=fd:vals=bl:pause")
    event.triggers.write("hist:keys=fd:vals=bl:sort=bl.descending:size=256:pause")
    section = "# event histogram\n#\n# trigger info: {}\n#\n\n\nTotals:\n    Hits: 0\n    Entries: 0\n    Dropped: 0\n"
    lines = event.triggers.read().splitlines()
    assert lines == [
        "hist:keys=fd:vals=hitcount,bl:sort=hitcount:size=2048 [paused]",
        "hist:keys=fd:vals=hitcount,bl:sort=bl.descending:size=256 [paused]",
    ]
    hit(event, fd=3)
    assert read_hists(event.triggers) == "\n\n".join(section.format(line) for line in lines)


def test_pause_continue_and_clear(event):
    text = "hist:keys=fd:vals=bl:sort=bl.descending:size=256"
    event.triggers.write(f"{text}:pause")
    hit(event, fd=3)
    event.triggers.write(f"{text}:cont")
    hit(event, fd=3)
    assert shown(event)[1] == [1, 1, 0]
    event.triggers.write(f"{text}:clear")
    assert shown(event)[1] == [0, 0, 0]
    event.triggers.write(f"{text}:pause")
    assert event.triggers.read().endswith("[paused]\n")
    message = "Can't clear or continue a nonexistent hist trigger"
    assert refused(event, "hist:keys=bl:clear") == (errno.ENOENT, [(message, 0)])
    assert refused(event, "hist:keys=bl:continue") == (errno.ENOENT, [(message, 0)])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("hist:keys=fd", "keys=fd:vals=hitcount:sort=hitcount:size=2048"),
        ("hist key=fd,bl:val=u", "keys=fd,bl:vals=hitcount,u:sort=hitcount:size=2048"),
        ("hist:keys=fd:values=hitcount,bl,u", "keys=fd:vals=hitcount,bl,u:sort=hitcount:size=2048"),
        ("hist:keys=fd:size=100", "keys=fd:vals=hitcount:sort=hitcount:size=128"),
        ("hist:keys=fd:size=0x1000", "keys=fd:vals=hitcount:sort=hitcount:size=4096"),
        ("hist:keys=fd:keys=bl:sort=fd:sort=bl", "keys=bl:vals=hitcount:sort=bl:size=2048"),
        ("hist:keys=fd:sort=fd.descending,hitcount.ascending", "keys=fd:vals=hitcount:sort=fd.descending,hitcount:size=2048"),
        ("hist:keys=fd.hex,bl.log2:vals=u.hex", "keys=fd.hex,bl.log2:vals=hitcount,u.hex:sort=hitcount:size=2048"),
        ("hist:keys=fd.buckets=10", "keys=fd.buckets=10:vals=hitcount:sort=hitcount:size=2048"),
        ("hist:keys=fd.bucket=0x10", "keys=fd.buckets=16:vals=hitcount:sort=hitcount:size=2048"),
        ("hist:keys=__probe_ip.sym-offset", "keys=__probe_ip.sym-offset:vals=hitcount:sort=hitcount:size=2048"),
        ("hist:keys=common_pid.execname", "keys=common_pid.execname:vals=hitcount:sort=hitcount:size=2048"),
        ("hist:keys=stacktrace,cpu", "keys=common_stacktrace,common_cpu:vals=hitcount:sort=hitcount:size=2048"),
        ("hist:keys=CPU.log2,common_cpu", "keys=common_cpu.log2,common_cpu:vals=hitcount:sort=hitcount:size=2048"),
        ("hist:keys=cpu:sort=cpu", "keys=common_cpu:vals=hitcount:sort=common_cpu:size=2048"),
        ("hist:keys=fd:c=cpu,s=stacktrace,t=common_stacktrace,d=cpu+1",
         "keys=fd:vals=hitcount:c=common_cpu,s=stacktrace,t=common_stacktrace,d=cpu+1:sort=hitcount:size=2048"),
        ("hist:keys=fd:x=10/3,y=9/3,z=1048576/3,w=3000000/1048577,v=10/4,u=7/3/2",
         "keys=fd:vals=hitcount:x=4,y=3,z=349525,w=2,v=2,u=1:sort=hitcount:size=2048"),
        ("hist:keys=hitcount", "keys=hitcount:vals=hitcount:sort=hitcount:size=2048"),
        ("hist:keys=fd:vals=bl:NOHC", "keys=fd:vals=bl:sort=hitcount:size=2048:nohitcount"),
        ("hist:keys=fd:x=bl,y=bl*2:vals=bl", "keys=fd:vals=hitcount,bl:x=bl,y=bl*2:sort=hitcount:size=2048"),
        ("hist:keys=fd:nosuch=3", "keys=fd:vals=hitcount:nosuch=3:sort=hitcount:size=2048"),
        ("hist:keys=fd:x=2*3,y=0x10", "keys=fd:vals=hitcount:x=6,y=16:sort=hitcount:size=2048"),
        ("hist:keys=fd:x=64/8/4/2,y=14-7-5-2,z=2+3*4", "keys=fd:vals=hitcount:x=1,y=0,z=14:sort=hitcount:size=2048"),
        ("hist:keys=fd:x=bl:y=$x", "keys=fd:vals=hitcount:x=bl,y=bl:sort=hitcount:size=2048"),
        ("hist:keys=fd:x=-(bl+u)", "keys=fd:vals=hitcount:x=-(bl+u):sort=hitcount:size=2048"),
        (
            "hist:keys=fd:t=common_timestamp.usecs",
            "keys=fd:vals=hitcount:t=common_timestamp.usecs:sort=hitcount:size=2048:clock=global",
        ),
        (
            "hist:keys=fd:x=bl:onmax($x).save(half,name)",
            "keys=fd:vals=hitcount:x=bl:sort=hitcount:size=2048:onmax($x).save(half,name)",
        ),
        (
            "hist:keys=fd:x=bl:onchange($x).snapshot()",
            "keys=fd:vals=hitcount:x=bl:sort=hitcount:size=2048:onchange($x).snapshot()",
        ),
        ("hist:name=foo:keys=fd", "name=foo:keys=fd:vals=hitcount:sort=hitcount:size=2048"),
        ("hist:keys=fd if  fd > 3 ", "keys=fd:vals=hitcount:sort=hitcount:size=2048 if  fd > 3"),
        ("hist:keys=hitcount.log2", "keys=.log2:vals=hitcount:sort=hitcount:size=2048"),
        ("hist:keys=hitcount.buckets=4", "keys=.buckets=4:vals=hitcount:sort=hitcount:size=2048"),
        ("hist:keys=stacktrace.hex", "keys=stacktrace.stacktrace:vals=hitcount:sort=hitcount:size=2048"),
        ("hist:keys=common_stacktrace.hex", "keys=common_stacktrace:vals=hitcount:sort=hitcount:size=2048"),
    ],
)  # fmt: skip
def test_a_definition_is_listed_in_full(event, text, line):
    assert listed(event, text) == f"hist:{line} [active]"


@pytest.mark.parametrize(
    ("text", "logged"),
    [
        ("hist", []),
        ("hist:", []),
        ("hist :keys=fd", []),
        ("hist:vals=bl", []),
        ("hist:keys=fd:size=0", []),
        ("hist:keys=fd:size=64", []),
        ("hist:keys=fd:size=131073", []),
        ("hist:keys=fd:size=abc", []),
        ("hist:keys=fd,bl,fd,bl", []),
        ("hist:keys=fd:vals=bl,u,x", []),
        ("hist:keys=fd:onfoo($x).save(u)", []),
        ("hist:keys=fd:x=-bl", []),
        ("hist:keys=fd:x=bl+-u", []),
        ("hist:keys=fd:x=bl+", []),
        ("hist:keys=", [("Empty assignment", 5)]),
        ("hist:keys=fd:vals=", [("Empty assignment", 13)]),
        ("hist:keys=fd:sort=", [("Empty assignment", 13)]),
        ("hist:keys=fd:size=", [("Empty assignment", 13)]),
        ("hist:keys=fd:x=", [("Empty assignment", 13)]),
        ("hist:keys=fd:sort=fd,", [("Empty sort field", 13)]),
        ("hist:keys=fd:sort=fd,bl,u", [("Too many sort fields (Max = 2)", 13)]),
        ("hist:keys=fd,bl,u:sort=fd,bl,u", [("Too many sort fields (Max = 2)", 18)]),
        ("hist:keys=fd:sort=nosuch", [("Sort field must be a key or a val", 18)]),
        ("hist:keys=cpu:sort=common_cpu", [("Sort field must be a key or a val", 19)]),
        ("hist:keys=fd:sort=fd.sideways", [("Invalid sort modifier", 21)]),
        ("hist:keys=fd:sort=fd.", [("Invalid sort modifier", 0)]),
        ("hist:keys=nosuch", [("Couldn't find field", 10)]),
        ("hist:keys=comm", [("Couldn't find field", 10)]),
        ("hist:keys=fd,", [("Couldn't find field", 0)]),
        ("hist:keys=fd:vals=nosuch", [("Couldn't find field", 18)]),
        ("hist:keys=nosuch if fd == 3", [("Couldn't find field", 10)]),
        ("hist:keys=fd.nosuch", [("Invalid field modifier", 13)]),
        ("hist:keys=fd.percent", [("Invalid field modifier", 13)]),
        ("hist:keys=fd.execname", [("Invalid field modifier", 13)]),
        ("hist:keys=fd.buckets", [("Invalid field modifier", 0)]),
        ("hist:keys=fd.buckets=0", [("Invalid field modifier", 21)]),
        ("hist:keys=fd.stacktrace", [("Invalid field modifier", 13)]),
        ("hist:keys=fd:vals=bl.nosuch", [("Invalid field modifier", 21)]),
        *(
            (f"hist:keys=fd:vals=bl.{modifier}", [("Invalid field modifier", 18)])
            for modifier in ("log2", "sym", "percent", "graph", "syscall")
        ),
        ("hist:keys=fd:x=bl:x=u", [("Variable already defined", 13)]),
        ("hist:keys=fd:x=$nosuch", [("Couldn't find variable", 16), ("Couldn't find field", 15)]),
        ("hist:keys=fd:x=name+1", [("String type can not be an operand in expression", 15)]),
        ("hist:keys=fd:x=bl+u+fd+fd+fd", [("Too many subexpressions (3 max)", 15)]),
        ("hist:keys=fd:x=-(bl)+u", [("Unary minus not supported in sub-expressions", 17)]),
        ("hist:keys=fd:x=3x", [("Expecting numeric literal", 15)]),
        ("hist:keys=fd:x=bl:onmax(x).save(bl)", [("For onmax(x) or onchange(x), x must be a variable", 13)]),
        ("hist:keys=fd:x=bl:onmax($y).save(bl)", [("Couldn't find onmax or onchange variable", 7)]),
        ("hist:keys=fd:x=bl:onmax($x)", [("No action found", 0)]),
        ("hist:keys=fd:x=bl:onmax($x).save(bl,y)", [("Invalid action param", 7)]),
        ("hist:keys=fd:onmatch(kprobes.h).nosuch(fd)", [("Couldn't find synthetic event", 32)]),
        ("hist:keys=fd:onmatch(kprobes.nosuch).x(fd)", [("Invalid subsystem or event name", 29)]),
        ("hist:keys=fd:onmatch(h).x(fd)", [("Missing subsystem", 0)]),
        ("hist:keys=fd:onmatch(kprobes.h).save(fd)", [("Handler doesn't support action", 32)]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_where_the_kernel_says_it(event, text, logged):
    assert refused(event, text) == (errno.EINVAL, logged)


def test_other_errnos(event):
    assert refused(event, "hist:keys=fd:x=bl/0") == (errno.EDOM, [("Division by zero", 18)])
    assert refused(event, "hist:keys=three") == (errno.ENOMEM, [])
    message = "Non-hitcount value is required for 'nohitcount'"
    assert refused(event, "hist:keys=fd:nohitcount") == (errno.ENOENT, [(message, 0)])
    event.triggers.write("hist:keys=fd")
    assert refused(event, "hist:keys=fd:size=256") == (errno.EEXIST, [("Hist trigger already exists", 0)])
    assert refused(event, "!hist:keys=nosuch")[0] == errno.EINVAL


def test_the_error_log_names_the_event_and_has_the_whole_command(instance, event):
    refused(event, "hist:keys=nosuch:size=128 if fd == 3")
    assert instance.log == [("hist:kprobes:h", "Couldn't find field", "hist:keys=nosuch:size=128 if fd == 3", 10)]


def test_keys_and_values_are_compared_apart_and_with_their_modifiers(event):
    for text in ("keys=bl,fd", "keys=fd:vals=bl", "keys=common_stacktrace", "keys=common_stacktrace.hex"):
        event.triggers.write(f"hist:{text}")
    assert len(event.triggers.read().splitlines()) == 4


def test_one_time_in_microseconds_puts_all_times_of_the_histogram_in_microseconds(event):
    event.triggers.write("hist:keys=fd:vals=common_timestamp.usecs,common_timestamp:v=fd")
    hit(event, fd=1)
    ((line,), _) = shown(event)
    one, other = (int(part) for part in line.split("common_timestamp:")[1:] for part in part.split()[:1])
    assert one == other


@pytest.mark.parametrize(
    ("clock", "stamp", "shown_as"),
    [("global", 1499, 1), ("global", 1500, 2), ("mono", 2_000_499, 2000), ("counter", 1500, 1500)],
)
def test_microseconds_are_rounded_and_clocks_that_count_something_else_are_not_divided(event, clock, stamp, shown_as):
    for more in ("", ":v=fd"):
        event.triggers.write(f"hist:keys=common_timestamp.usecs:vals=fd{more}:clock={clock}")
    hit(event, time=stamp)
    lines = [line for line in read_hists(event.triggers).splitlines() if line.startswith("{")]
    assert lines == [f"{{ common_timestamp: {shown_as:10} }} hitcount:          1  fd:          0"] * 2


def test_times_in_microseconds_are_not_mixed_with_others(event):
    event.triggers.write("hist:keys=fd:x=common_timestamp.usecs-fd.usecs")
    assert refused(event, "hist:keys=bl:y=common_timestamp.usecs-fd")[1] == [
        ("Timestamp units in expression don't match", 0)
    ]


def test_removal_of_what_is_not_there_succeeds(event):
    event.triggers.write("!hist:keys=fd")
    event.triggers.write("hist:keys=fd if fd == 3")
    event.triggers.write("!hist:keys=fd")
    assert "if fd == 3" in event.triggers.read()
    event.triggers.write("!hist:keys=fd if fd == 3")
    assert event.triggers.read() == AVAILABLE


def test_truncation_removes_histograms_only_and_they_are_listed_last(event):
    for text in ("hist:keys=fd", "traceoff:0", "hist:keys=bl"):
        event.triggers.write(text)
    assert [line[:12] for line in event.triggers.read().splitlines()] == [
        "traceoff:cou",
        "hist:keys=fd",
        "hist:keys=bl",
    ]
    event.triggers.truncate()
    assert event.triggers.read() == "traceoff:count=0\n"


@pytest.mark.parametrize(
    ("keys", "values", "entry"),
    [
        ("fd/3", {"fd": 10}, "fd/3:          4"),
        ("fd", {"fd": -1}, "fd: 18446744073709551615"),
        ("u", {"u": 200}, "u:        200"),
        ("half", {"half": -2}, "half: 18446744073709551614"),
        ("wide.hex", {"wide": 0xABC}, "wide: abc"),
        ("fd.hex", {"fd": -1}, "fd: ffffffffffffffff"),
        ("u.log2", {"u": 0}, "u: ~ 2^0 "),
        ("u.log2", {"u": 3}, "u: ~ 2^2 "),
        ("u.log2", {"u": 4}, "u: ~ 2^2 "),
        ("wide.log2", {"wide": 1 << 40}, "wide: ~ 2^40"),
        ("u.buckets=10", {"u": 27}, "u: ~ 20-29"),
        ("four", {"four": b"\1\2\3\4"}, "four:   67305985"),
        ("name", {"name": b"hello"}, f"name: {'hello':<50}"),
        ("name", {"name": b"a\x1b\\b"}, "name: a\x1b\\b" + 46 * " "),
        ("name", {"name": None}, f"name: {'':<50}"),
        ("name", {"name": b"x" * 300}, f"name: {'x' * 255}"),
        ("fixed", {"fixed": b"whole234"}, f"fixed: {'whole23':<50}"),
        ("fixed", {"fixed": b"ab\0cd"}, f"fixed: {'ab':<50}"),
        ("hitcount", {}, "hitcount:          1"),
        ("hitcount.log2", {}, ": ~ 2^1 "),
        ("hitcount.buckets=4", {}, ": ~ 1-4"),
        ("name.hex", {"name": b"abcdefghij"}, "name: 6867666564636261"),
        ("common_stacktrace.hex", {}, "common_stacktrace: 1000"),
        ("common_stacktrace.sym", {}, f"common_stacktrace: [1000] {'0x1000':<45}"),
        ("__probe_ip.sym", {"__probe_ip": 0x1234}, f"__probe_ip: [1234] {'0x1234':<45}"),
        ("__probe_ip.sym-offset", {"__probe_ip": 0x1234}, f"__probe_ip: [1234] {'0x1234':<55}"),
        ("u.syscall", {"u": 5}, f"u: {'sys_newfstat':<30}[  5]"),
        ("fd.syscall", {"fd": 462}, f"fd: {'sys_mseal':<30}[462]"),
        ("fd.syscall", {"fd": 156}, f"fd: {'unknown_syscall':<30}[156]"),
        ("wide.syscall", {"wide": 1 << 32}, f"wide: {'sys_read':<30}[4294967296]"),
        ("fd.syscall", {"fd": 1000}, f"fd: {'unknown_syscall':<30}[1000]"),
        ("fd,name,u.hex", {"fd": 1, "name": b"n", "u": 10}, f"fd:          1, name: {'n':<50}, u: a"),
        ("fd+bl", {"fd": 1, "bl": 2}, "fd+bl:          3"),
    ],
)  # fmt: skip
def test_keys_are_shown_as_the_kernel_shows_them(event, keys, values, entry):
    event.triggers.write(f"hist:keys={keys}")
    hit(event, **values)
    hit(event, **values)
    assert shown(event) == ([f"{{ {entry} }} hitcount:          2"], [2, 1, 0])


@pytest.mark.parametrize("name", ["cpu", "CPU", "common_cpu"])
def test_te8_5_the_cpu_is_shown_under_the_name_it_was_given(event, name):
    event.triggers.write(f"hist:keys={name}:vals={name}")
    hit(event)
    (line,) = shown(event)[0]
    cpu = line.split()[2]
    assert line == f"{{ {name}: {cpu:>10} }} hitcount:          1  {name}: {cpu:>10}"


def test_the_tasks_name_is_that_of_the_first_hit(event):
    with open("/proc/thread-self/comm") as file:  # noqa: PTH123
        comm = file.read().strip()
    event.triggers.write("hist:keys=common_pid.execname")
    hit(event, pid=42)
    assert shown(event)[0] == [f"{{ common_pid: {comm:<16}[        42] }} hitcount:          1"]


def test_a_stack_trace_ends_with_a_bare_brace(event):
    event.triggers.write("hist:keys=common_stacktrace,fd")
    hit(event, fd=3)
    hit(event, fd=3)
    frames = f"{'':9}0x1000\n{'':9}0x2000\n"
    assert f"{{ common_stacktrace:\n{frames}, fd:          3}} hitcount:          2\n" in read_hists(event.triggers)


def test_values_are_sums_and_nohitcount_hides_the_hits(event):
    event.triggers.write("hist:keys=fd:vals=bl,u.hex:nohitcount")
    hit(event, fd=3, bl=-1, u=10)
    hit(event, fd=3, bl=-1, u=10)
    assert shown(event)[0] == ["{ fd:          3 }  bl: 18446744073709551614  u:         14"]


def test_signed_keys_are_sorted_by_their_sign_and_texts_by_their_bytes(event):
    event.triggers.write("hist:keys=fd,name:sort=fd.descending,name")
    for fd, name in ((1, b"b"), (-1, b"a"), (1, b"a"), (0, b"a")):
        hit(event, fd=fd, name=name)
    keys = [(line[6:].split(",")[0].strip(), line.partition("name: ")[2][0]) for line in shown(event)[0]]
    assert keys == [("1", "a"), ("1", "b"), ("0", "a"), ("18446744073709551615", "a")]


def test_entries_with_equal_values_come_in_the_kernels_order(event):
    event.triggers.write("hist:keys=fd:vals=bl")
    for fd in (3, 4):
        hit(event, fd=fd)
    assert [line.split()[2] for line in shown(event)[0]] == ["4", "3"]


@given(st.lists(st.integers(0, 5), max_size=40))
def test_the_kernels_sort_sorts(numbers):
    assert heap_sort(numbers, lambda one, other: one - other) == sorted(numbers)


@pytest.mark.parametrize("extra", ["", ":x=fd"])
def test_what_finds_no_place_is_dropped_and_no_hit(event, extra):
    event.triggers.write(f"hist:keys=fd:size=128{extra}")
    for fd in range(150):
        hit(event, fd=fd)
    hit(event, fd=3)
    lines, totals = shown(event)
    assert (len(lines), totals) == (128, [129, 128, 22])


def test_a_condition_decides_over_hits(event):
    event.triggers.write('hist:keys=fd if fd > 3 && name ~ "a*"')
    for fd, name in ((3, b"a"), (4, b"a"), (4, b"b")):
        hit(event, fd=fd, name=name)
    assert shown(event)[1] == [1, 1, 0]


def test_one_name_is_one_table_for_several_events(instance, event):
    other = instance.event("other")
    event.triggers.write("hist:name=both:keys=fd")
    other.triggers.write("hist:name=both:keys=fd if fd > 1")
    hit(event, fd=1)
    hit(other, fd=1)
    hit(other, fd=2)
    assert shown(event)[1] == shown(other)[1] == [2, 2, 0]
    event.triggers.write("hist:name=both:keys=fd:pause")
    assert "[paused]" in event.triggers.read()
    assert "[active]" in other.triggers.read()
    message = "Named hist trigger doesn't match existing named trigger (includes variables)"
    assert refused(other, "hist:name=both:keys=bl") == (errno.EINVAL, [(message, 5)])
    other.triggers.remove_all()


def test_te8_6_one_name_is_one_table_for_all_trace_instances(event):
    other = Instance().event("h")
    for each in (event, other):
        each.triggers.write("hist:name=both:keys=fd:x=bl")
        hit(each, fd=1)
    assert shown(event)[1] == shown(other)[1] == [2, 1, 0]
    assert refused(other, "hist:name=both:keys=bl")[1][0][0].startswith("Named hist trigger doesn't match")
    event.triggers.remove_all()
    hit(other, fd=1)
    assert shown(other)[1] == [3, 1, 0]
    other.triggers.remove_all()


def test_enable_hist_and_disable_hist(instance, event):
    switch = instance.event("switch")
    event.triggers.write("hist:keys=fd")
    switch.triggers.write("disable_hist:kprobes:h:1 if fd == 1")
    assert switch.triggers.read() == "disable_hist:kprobes:h:count=1 if fd == 1\n"
    assert refused(switch, "enable_hist:kprobes:h")[0] == errno.EEXIST
    hit(switch, fd=1)
    hit(event)
    assert "[paused]" in event.triggers.read()
    assert shown(event)[1] == [0, 0, 0]
    switch.triggers.write("!enable_hist:kprobes:h")
    switch.triggers.write("enable_hist:kprobes:h")
    hit(switch)
    hit(event)
    assert shown(event)[1] == [1, 1, 0]
    switch.triggers.remove_all()


def test_each_thread_counts_in_a_table_of_its_own_and_readers_add_up(event):
    event.triggers.write("hist:keys=fd,name:vals=bl")

    def work():
        for number in range(200):
            hit(event, fd=number % 4, name=b"n", bl=1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines, totals = shown(event)
    assert totals == [800, 4, 0]
    assert all(line.endswith("hitcount:        200  bl:        200") for line in lines)


def test_plain_histograms_are_counted_natively(event):
    for text in ("keys=fd", "keys=name,fd.log2:vals=bl", "keys=common_pid.execname,cpu", "keys=common_stacktrace,fd"):
        event.triggers.write(f"hist:{text}")
    assert all(isinstance(trigger.table, PerThreadHistogram) for trigger in event.triggers.hists)


def test_te8_5_stacks_are_counted_natively_and_none_is_dropped(instance, event):
    event.triggers.write("hist:keys=bl,common_stacktrace:vals=fd")
    for index in range(1200):
        instance.stack[1] = 0x2000 + index % 2
        hit(event, bl=5, fd=1)
    lines, totals = shown(event)
    assert totals == [1200, 2, 0]
    for first, frame in ((0, "0x2000"), (4, "0x2001")) if lines[2].endswith("0") else ((4, "0x2000"), (0, "0x2001")):
        assert lines[first : first + 3] == ["{ bl:          5, common_stacktrace:", f"{'0x1000':>15}", f"{frame:>15}"]
        assert lines[first + 3] == f"}} hitcount: {600:10}  fd: {600:10}"


keys = st.sampled_from(["fd", "u", "half.hex", "wide.log2", "bl.buckets=7", "name", "fixed", "x"])
hits = st.fixed_dictionaries(
    {
        "fd": st.integers(-2, 2), "bl": st.integers(-20, 20), "u": st.integers(0, 3), "half": st.integers(-1, 1),
        "wide": st.sampled_from([0, 1, 2, 3, 1 << 63, (1 << 64) - 1]), "x": st.integers(0, 1 << 31),
        "name": st.sampled_from([b"", b"a", b"ab", None, b"y" * 255]), "fixed": st.sampled_from([b"", b"12345678", b"1\x002"]),
    }
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(keys, min_size=1, max_size=3, unique=True), st.lists(hits, max_size=25))
def test_native_counting_agrees_with_python(names, candidates):
    """A variable has a histogram kept by Python; what both show must be the same."""
    instance = Instance()
    native, python = instance.event("native"), instance.event("python")
    native.triggers.write(f"hist:keys={','.join(names)}:vals=bl,half:sort={names[0].split('.')[0]}")
    python.triggers.write(f"hist:keys={','.join(names)}:vals=bl,half:v=fd:sort={names[0].split('.')[0]}")
    for values in candidates:
        hit(native, **values)
        hit(python, **values)
    ours, theirs = shown(native), shown(python)
    assert (sorted(ours[0]), ours[1]) == (sorted(theirs[0]), theirs[1])
    native.triggers.remove_all()
    python.triggers.remove_all()


LATENCY = (PlainField("u64", "delta", 8, 8), PlainField("int", "fd", 16, 4, signed=True))


@pytest.fixture
def pair(instance):
    instance.synthetic["lat"] = LATENCY
    yield instance.event("start"), instance.event("end")
    for event in reversed(instance.events.values()):
        event.triggers.remove_all()


def test_onmatch_generates_a_synthetic_event_with_the_matched_events_variable(instance, pair):
    start, end = pair
    start.triggers.write("hist:keys=fd:t0=wide")
    end.triggers.write("hist:keys=fd:d=wide-$t0:onmatch(kprobes.start).lat($d,fd)")
    assert end.triggers.read() == (
        "hist:keys=fd:vals=hitcount:d=wide-$t0:sort=hitcount:size=2048:onmatch(kprobes.start).lat($d,fd) [active]\n"
    )
    hit(end, fd=3, wide=5)
    hit(start, fd=3, wide=10)
    hit(end, fd=4, wide=20)
    hit(end, fd=3, wide=25)
    hit(end, fd=3, wide=26)
    assert shown(end)[1] == [1, 1, 0], "a variable in an expression is used up when it is read"
    assert instance.generated == [("lat", 15, 3)]
    with pytest.raises(OSError) as caught:
        start.triggers.write("!hist:keys=fd:t0=wide")
    assert caught.value.errno == errno.EBUSY
    end.triggers.truncate()
    start.triggers.write("!hist:keys=fd:t0=wide")


def test_trace_names_the_event_and_takes_fields_of_the_matched_one(instance, pair):
    start, end = pair
    instance.synthetic["lat"] = (PlainField("u64", "d", 8, 8), PlainField("s32", "fd", 16, 4, signed=True))
    start.triggers.write("hist:keys=common_pid")
    end.triggers.write("hist:keys=common_pid:onmatch(kprobes.start).trace(lat,kprobes.start.wide,fd)")
    assert end.triggers.read().endswith(":onmatch(kprobes.start).trace(lat,kprobes.start.wide,fd) [active]\n")
    hit(start, wide=7)
    hit(end, fd=2, wide=9)
    read_hists(end.triggers)
    assert instance.generated == [("lat", 7, 2)]


def test_the_parameters_of_a_synthetic_event_must_fit_it(instance, pair):
    start, end = pair
    start.triggers.write("hist:keys=fd:x=bl,y=bl*2:vals=bl")
    text = "hist:keys=fd:d=$x:onmatch(kprobes.start).lat($d,fd)"
    message = "Param type doesn't match synthetic event field type"
    assert refused(end, text) == (errno.EINVAL, [(message, text.index("$d"))])
    text = "hist:keys=fd:onmatch(kprobes.start).lat(wide)"
    message = "Param count doesn't match synthetic event field count"
    assert refused(end, text) == (errno.EINVAL, [(message, text.index("lat"))])


def test_onmax_saves_fields_of_the_hit_with_the_greatest_value(event):
    event.triggers.write("hist:keys=fd:x=bl:onmax($x).save(half,name)")
    for bl, half, name in ((3, 1, b"one"), (9, 2, b"two"), (5, 3, b"three")):
        hit(event, fd=1, bl=bl, half=half, name=name)
    assert shown(event)[0] == [
        "{ fd:          1 } hitcount:          3",
        f"\tmax:          9  half:          2  name: {'two':<32}",
    ]


def test_what_was_never_saved_is_shown_as_nothing(event):
    event.triggers.write("hist:keys=fd:x=bl:onchange($x).save(half,name)")
    hit(event, fd=1, bl=0, half=1, name=b"one")
    assert shown(event)[0] == [
        "{ fd:          1 } hitcount:          1",
        f"\tchanged:          0  half:          0  name: {'(null)':<32}",
    ]


def test_onchange_takes_a_snapshot_when_the_value_changes(instance, event):
    event.triggers.write("hist:keys=fd:x=bl:onchange($x).snapshot()")
    for bl in (3, 3, 4):
        hit(event, fd=1, bl=bl)
    text = read_hists(event.triggers)
    assert instance.done == ["snapshot", "snapshot"]
    assert (
        "\nSnapshot taken (see tracing/snapshot).  Details:\n"
        "\ttriggering value { onchange($x) }:          4\ttriggered by event with key: { fd:          1 }\n" in text
    )


def test_a_variable_of_two_events_needs_a_qualified_name(instance, pair):
    start, end = pair
    third = instance.event("third")
    start.triggers.write("hist:keys=fd:x=bl")
    end.triggers.write("hist:keys=fd:x=bl")
    found = refused(third, "hist:keys=fd:y=$x+1")
    assert found[1][0][0].startswith("Variable name not unique")
    third.triggers.write("hist:keys=fd:y=kprobes.start.$x+1")
    assert ":y=kprobes.start.x+1:" in third.triggers.read().replace("$", "")


def test_a_constant_of_another_histogram_is_a_constant_in_expressions(pair):
    start, end = pair
    start.triggers.write("hist:keys=fd:x=6,z=0")
    end.triggers.write("hist:keys=fd:y=$x*3:w=$x,v=$x+1")
    assert ":y=18,w=$x,v=7:" in end.triggers.read()
    assert refused(end, "hist:keys=bl:u=fd/$z") == (errno.EDOM, [("Division by zero", 18)])
    with pytest.raises(OSError) as caught:
        start.triggers.write("!hist:keys=fd:x=6,z=0")
    assert caught.value.errno == errno.EBUSY
    hit(end, fd=1)
    assert shown(end)[1] == [0, 0, 0], "the other histogram has no entry with this key yet"
    hit(start, fd=1)
    hit(end, fd=1)
    assert shown(end)[1] == [1, 1, 0]


def test_variables_cannot_be_keys(pair):
    start, end = pair
    start.triggers.write("hist:keys=fd:x=bl")
    message = "Using variable references in keys not supported"
    assert refused(end, "hist:keys=$x") == (errno.EINVAL, [(message, 10)])


def test_a_variable_whose_name_is_empty_is_listed_and_is_one(event):
    event.triggers.write("hist:keys=fd:=3")
    assert event.triggers.read().startswith("hist:keys=fd:vals=hitcount:=3:sort=hitcount")
    assert refused(event, "hist:keys=fd:=3") == (errno.EINVAL, [("Variable already defined", 0)])


def test_te8_4_no_hit_of_a_histogram_with_variables_is_dropped(event):
    event.triggers.write("hist:keys=fd:x=bl")
    for _ in range(10_000):
        hit(event, fd=1)
    assert shown(event)[1] == [10_000, 1, 0]


def test_an_action_is_carried_out_at_the_hit_itself(instance, event):
    event.triggers.write("hist:keys=fd:x=bl:onchange($x).snapshot()")
    hit(event, bl=3)
    assert instance.done == ["snapshot"]


def test_an_entry_that_a_signal_left_half_made_is_passed_over(event):
    """A signal's handler that hits while the thread makes an entry sees its mark without its key."""
    event.triggers.write("hist:keys=fd")
    hit(event, fd=1)
    table = event.triggers.hists[0].table
    area = next(area for area in table._areas() if TableHeader.ctypes.from_address(area).used)
    mark = 3 << 1 | 1
    place = (mark * 0x9E37_79B9_7F4A_7C15 & (1 << 64) - 1) >> table.native.shift
    ctypes.c_uint64.from_address(area + HEADER + place * table.native.entry).value = mark
    hit(event, fd=3)
    hit(event, fd=3)
    after = area + HEADER + (place + 1) * table.native.entry
    assert ctypes.c_uint64.from_address(after).value == mark
    assert sorted(shown(event)[0]) == [
        "{ fd:          1 } hitcount:          1",
        "{ fd:          3 } hitcount:          2",
    ]


@pytest.mark.stress
def test_what_hits_run_touches_no_vector_registers_and_calls_only_what_it_may():
    functions = (*table_records.FUNCTIONS, *map_records.FUNCTIONS, *synthetic_records.FUNCTIONS, *records.FUNCTIONS)
    made = compile_unit(Unit("verified", functions, bounded=False))
    runtime = {"task_get", "ftrace_probe_read", "ring_reserve", "ring_end", "ring_stamp"}
    assert verify_object(made, runtime) == []


@settings(max_examples=200, deadline=None)
@given(st.text("hist:keysvald=,.$()+-*/fb1 ifonmach", max_size=40))
def test_any_text_is_accepted_or_refused_with_an_errno(text):
    instance = Instance()
    event = instance.event("h")
    for candidate in (f"hist:keys=fd:{text}", f"hist:keys={text}", text):
        try:
            event.triggers.write(candidate)
        except OSError as error:
            assert error.errno
    read_hists(event.triggers)
    event.triggers.remove_all()
    assert event.held == 0
