"""Hist triggers that use other events' variables, the trace clock, literals (TE-8.1 to TE-8.9), as trace_events_hist.c."""

from __future__ import annotations

import errno

import pytest
from event_files import Instance, hit

from ftrace.tracing.events.filters.fields import PlainField
from ftrace.tracing.events.hist.hist_trigger import read_hists, register_hist_command
from ftrace.tracing.events.triggers.trigger_file import AVAILABLE

register_hist_command()

THREE = tuple(PlainField("s32", name, at, 4, signed=True) for name, at in (("a", 8), ("b", 16), ("c", 24)))
OTHER = (PlainField("s32", "fd", 8, 4, signed=True), PlainField("s32", "length", 12, 4, signed=True))


@pytest.fixture
def instance():
    made = Instance()
    made.synthetic["ev"] = THREE
    yield made
    for event in reversed(made.events.values()):
        event.triggers.remove_all()


@pytest.fixture
def pair(instance):
    """The event that is matched, with a field `length`; the one that generates."""
    return instance.event("start", fields=OTHER), instance.event("end")


def messages(instance):
    found = [(subsystem, message, command[position:]) for subsystem, message, command, position in instance.log]
    instance.log.clear()
    return found


def entries(event):
    return read_hists(event.triggers).partition("#\n\n")[2].partition("\n\nTotals")[0].splitlines()


def refused(event, text):
    with pytest.raises(OSError) as caught:
        event.triggers.write(text)
    return caught.value.errno


def test_te8_9_a_field_of_the_matched_event_gets_a_histogram_that_goes_with_its_user(instance, pair):
    start, end = pair
    start.triggers.write("hist:keys=fd if length > 1")
    text = "hist:keys=fd:onmatch(kprobes.start).ev(fd,length,bl)"
    end.triggers.write(text)
    assert messages(instance) == [
        ("hist:kprobes:end", "Couldn't find field", "length,bl)"),
        ("hist:kprobes:end", "Couldn't parse field variable", "length,bl)"),
    ], "6.12 looks for it on the event itself first"
    plain = "hist:keys=fd:vals=hitcount:sort=hitcount:size=2048 if length > 1 [active]\n"
    assert start.triggers.read() == plain + (
        "hist:keys=fd:vals=hitcount:synthetic_length=length:sort=hitcount:size=2048 if length > 1 [active]\n"
    )
    data = bytes(4) + bytes([7, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0])
    hit(start, data)
    hit(end, fd=3, bl=5)
    read_hists(end.triggers)
    assert instance.generated == [("ev", 3, 9, 5)]
    end.triggers.write(f"!{text}")
    assert start.triggers.read() == plain
    messages(instance)


def test_te8_8_errors_about_a_field_of_the_matched_event(instance, pair):
    start, end = pair
    text = "hist:keys=fd:onmatch(kprobes.start).ev(fd,length,bl)"
    assert refused(end, text) == errno.EINVAL
    assert messages(instance)[-1] == ("hist:kprobes:end", "Matching event histogram not found", "length,bl)")
    start.triggers.write("hist:keys=length.log2,fd")
    assert refused(end, text) == errno.EINVAL, "its keys are others"
    assert messages(instance)[-1][1] == "Matching event histogram not found"
    start.triggers.write("hist:keys=fd")
    assert refused(end, "hist:keys=fd:onmatch(kprobes.start).ev(fd,kprobes.start.nosuch,bl)") == errno.EINVAL
    assert messages(instance) == [
        ("hist:kprobes:end", "Couldn't find field", "nosuch,bl)"),
        ("hist:kprobes:end", "Couldn't create histogram for field", "nosuch,bl)"),
    ]
    assert refused(end, "hist:keys=fd:onmatch(kprobes.start).ev(fd,kprobes.none.x,bl)") == errno.EINVAL
    assert messages(instance)[-1][1] == "Event file not found"


def test_te8_8_save_keeps_no_field_under_the_name_of_a_variable(instance, pair):
    _, end = pair
    assert refused(end, "hist:keys=fd:bl=half:onmax($bl).save(bl)") == errno.EINVAL
    assert [message for _, message, _ in messages(instance)] == [
        "Couldn't create or find variable",
        "Couldn't create field variable",
    ]
    assert refused(end, "hist:keys=fd:x=bl:onmax($x).save(bl+1)") == errno.EINVAL, "no expression either"
    assert messages(instance)[0][1] == "Couldn't find field"


def test_te7_2_truncation_spares_histograms_whose_variables_are_used(instance, pair):
    start, end = pair
    start.triggers.write("hist:keys=fd:t=length")
    end.triggers.write("hist:keys=fd:d=$t")
    start.triggers.truncate()
    assert start.triggers.read() == "hist:keys=fd:vals=hitcount:t=length:sort=hitcount:size=2048 [active]\n"
    end.triggers.truncate()
    start.triggers.truncate()
    assert start.triggers.read() == AVAILABLE


def test_te8_1_time_stamps_set_the_trace_clock(instance, pair):
    _, end = pair
    end.triggers.write("hist:keys=fd:clock=nosuch")
    assert instance.clock == "local", "no time stamps, no clock"
    end.triggers.write("hist:keys=fd:t=common_timestamp")
    assert instance.clock == "global"
    end.triggers.write("hist:keys=bl:u=common_timestamp:clock=mono")
    assert instance.clock == "mono"
    assert refused(end, "hist:keys=bl:v=common_timestamp:clock=nosuch") == errno.EINVAL
    assert messages(instance) == [("hist:kprobes:end", "Couldn't set trace_clock", "nosuch")]
    assert len(end.triggers.read().splitlines()) == 3


def test_te8_5_literals_have_no_name(instance, pair):
    _, end = pair
    end.triggers.write("hist:keys=5,fd:vals=2*3,hitcount,hitcount")
    assert end.triggers.read() == "hist:keys=5,fd:vals=hitcount,6,hitcount:sort=hitcount:size=2048 [active]\n"
    hit(end, fd=3)
    assert entries(end) == ["{ :          5, fd:          3 } hitcount:          1  :          6  hitcount:          1"]
    assert refused(end, "hist:keys=5:sort=5") == errno.EINVAL


@pytest.mark.parametrize("wide", [False, True], ids=["native", "queued"])
def test_te8_5_negative_numbers_in_logarithms_and_buckets(pair, wide):
    _, end = pair
    end.triggers.write(f"hist:keys=fd.log2,bl.buckets=10{':x=bl' * wide}")
    hit(end, fd=-1, bl=-1)
    assert entries(end) == ["{ fd: ~ 2^0 , bl: ~ 18446744073709551610-3 } hitcount:          1"]


def test_te8_9_an_expression_in_microseconds_says_so_as_an_operand(pair):
    start, end = pair
    start.triggers.write("hist:keys=fd:t=common_timestamp.usecs")
    end.triggers.write("hist:keys=fd:d=common_timestamp.usecs-$t-$t")
    assert ":d=common_timestamp.usecs-$t.usecs-$t:" in end.triggers.read()


def test_te8_1_an_equals_sign_makes_an_assignment(instance, pair):
    _, end = pair
    assert refused(end, "hist:keys=fd:onmax($x).save(a=b)") == errno.EINVAL
    assert messages(instance) == [("hist:kprobes:end", "Couldn't find field", "b)")]


MANY = ",".join(f"v{index}=bl" for index in range(16))


def test_te8_1_sixteen_variables_and_those_that_actions_make(instance, pair):
    _, end = pair
    end.triggers.write(f"hist:keys=fd:{MANY},more=bl")
    assert ",v15=bl:sort" in end.triggers.read()  # what one assignment has beyond sixteen is not looked at
    end.triggers.truncate()
    assert refused(end, f"hist:keys=fd:{MANY}:more=bl") == errno.EINVAL
    assert messages(instance)[0][1] == "Too many variables defined"
    assert refused(end, f"hist:keys=fd:{MANY}:onmax($v1).save(fd)") == errno.EINVAL
    assert [message for _, message, _ in messages(instance)] == ["Couldn't create onmax or onchange variable"]
    fifteen = MANY.rpartition(",")[0]
    assert refused(end, f"hist:keys=fd:{fifteen}:onmax($v1).save(fd)") == errno.EINVAL
    found = [message for _, message, _ in messages(instance)]
    assert found == ["Couldn't create or find variable", "Couldn't create field variable"]
    end.triggers.write(f"hist:keys=fd:{fifteen.rpartition(',')[0]}:onmax($v1).save(fd)")


def test_te8_9_a_trigger_uses_sixteen_variables(instance, pair):
    start, end = pair
    start.triggers.write(f"hist:keys=fd:{MANY.replace('bl', 'length')}")
    sums = [f"w{index}=" + "+".join(f"$v{4 * index + other}" for other in range(4)) for index in range(4)]
    assert refused(end, f"hist:keys=fd:{','.join(sums)}:x=bl:onmax($x).save(bl)") == errno.ENOMEM
    assert messages(instance) == []
    sums[-1] = "w3=$v12+$v13+$v14"
    end.triggers.write(f"hist:keys=fd:{','.join(sums)}:x=bl:onmax($x).save(bl)")
    end.triggers.truncate()
    instance.event("third", fields=OTHER).triggers.write("hist:keys=fd:other=length")
    assert refused(end, f"hist:keys=fd:{','.join(sums)},y=$v15+$other") == errno.EINVAL
    found = [(message, rest) for _, message, rest in messages(instance)]
    assert found == [("Couldn't find variable", "other"), ("Couldn't find field", "$other")]


def test_te8_8_an_action_has_64_parameters(instance, pair):
    _, end = pair
    for name, count in (("trace(nosuch,", 65), ("nosuch(", 65)):
        assert refused(end, f"hist:keys=fd:x=bl:onmax($x).{name}{','.join(['fd'] * count)})") == errno.EINVAL
        ((_, message, rest),) = messages(instance)
        assert message == "Too many action params" and rest.startswith("hist:keys")
    assert refused(end, f"hist:keys=fd:x=bl:onmax($x).trace(nosuch,{','.join(['fd'] * 64)})") == errno.EINVAL
    assert messages(instance)[0][1] == "Couldn't find synthetic event"


def test_te8_1_the_size_of_keys_is_checked_one_by_one(instance, pair):
    _, end = pair
    assert refused(end, "hist:keys=name,name,nosuch") == errno.EINVAL
    assert messages(instance) == []


def test_te8_5_a_field_that_is_saved_twice_is_shown_twice(pair):
    _, end = pair
    end.triggers.write("hist:keys=fd:x=bl:onmax($x).save(bl,bl)")
    hit(end, fd=3, bl=7)
    assert entries(end)[1] == f"\tmax: {7:10}  bl: {7:10}  bl: {7:10}"


def test_te8_5_what_is_saved_is_a_number_unless_it_is_a_text(pair):
    _, end = pair
    end.triggers.write("hist:keys=fd:x=bl:onmax($x).save(common_stacktrace,name,common_pid.execname)")
    hit(end, fd=3, bl=7, name=b"text", pid=9)
    saved = f"common_stacktrace: {0x1000:10}  name: {'text':<32}  common_pid.execname: {9:10}"
    assert entries(end)[1] == f"\tmax: {7:10}  {saved}"


def test_te8_9_a_name_of_a_thread_is_a_number_in_an_expression(pair):
    start, end = pair
    start.triggers.write("hist:keys=common_pid:comm=common_pid.execname,next=common_pid.execname+1")
    assert ":comm=common_pid.execname,next=common_pid.execname+1:" in start.triggers.read()
    end.triggers.write("hist:keys=common_pid:vals=$next,$comm")
    hit(start, pid=9)
    hit(end, pid=9)
    assert entries(end) == [f"{{ common_pid: {9:10} }} hitcount: {1:10}  next: {10:10}  comm: {0:10}"]
