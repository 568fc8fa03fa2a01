"""Statements on probe events that are about the files as a whole, each on its own: see docs/conformance.md."""

from __future__ import annotations

import errno
import os

import pytest

import sandbox


@pytest.fixture
def files(machine):
    tracefs = machine.tracefs
    yield tracefs
    tracefs.write("events/enable", "0")
    tracefs.write("dynamic_events", "")
    tracefs.write("error_log", "")
    tracefs.write("trace", "")


def refused(files, name, line):
    with pytest.raises(OSError) as caught:
        files.write(name, line, append=True)
    return caught.value.errno


def recorded(files, name="trace"):
    return [line.partition(": ")[2] for line in files.read(name).splitlines() if not line.startswith("#")]


def profile(files):
    return [tuple(line.split()) for line in files.read("kprobe_profile").splitlines()]


def test_pe1_10_a_line_for_each_probe_in_the_order_of_creation(files):
    assert files.read("kprobe_events") == files.read("dynamic_events") == ""
    files.write("dynamic_events", "p:b vfs_read\nf:a vfs_read\np:a vfs_read a=%di\np:b vfs_read+4\n")
    assert [line.split()[0] for line in files.read("dynamic_events").splitlines()] == [
        "p:kprobes/b", "f:fprobes/a", "p:kprobes/a", "p:kprobes/b",
    ]  # fmt: skip
    assert [line.split()[0] for line in files.read("kprobe_events").splitlines()] == [
        "p:kprobes/b", "p:kprobes/a", "p:kprobes/b",
    ]  # fmt: skip


def test_pe3_5_directories_come_with_the_first_probe_and_go_with_the_last(files):
    files.write("kprobe_events", "p:mine/one vfs_read\np:mine/one vfs_read+4\np:mine/two vfs_read\n")
    assert set(files.listdir("events/mine")) >= {"one", "two", "enable", "filter"}
    files.write("kprobe_events", "-:mine/one vfs_read+4\n", append=True)
    assert files.is_directory("events/mine/one")
    files.write("kprobe_events", "-:mine/one\n", append=True)
    assert not files.is_directory("events/mine/one") and files.is_directory("events/mine/two")
    files.write("kprobe_events", "-:mine/two\n", append=True)
    assert "mine" not in files.listdir("events")


def test_pe4_3_an_unknown_symbol_waits_with_the_place(files):
    # register_trace_kprobe() lets any ENOENT pass if the module is not loaded, or the place is an address
    lines = ["p:kprobes/later nomod:there arg1=@nosuch", "p:kprobes/nowhere 0x0000000000003039 arg1=@nosuch"]
    files.write("kprobe_events", "".join(f"{line}\n" for line in lines))
    assert files.read("kprobe_events").splitlines() == lines
    files.write("events/kprobes/enable", "1")
    assert profile(files) == [("later", "0", "0"), ("nowhere", "0", "0")]
    assert refused(files, "kprobe_events", "p nomod:there @nosuch+x") == errno.EINVAL
    assert refused(files, "kprobe_events", "p vfs_read @nosuch") == errno.ENOENT
    assert refused(files, "dynamic_events", "f vfs_read @nosuch") == errno.ENOENT
    assert refused(files, "dynamic_events", "t anything @nosuch") == errno.ENOENT


def test_pe4_3_a_symbol_that_comes_with_the_module_of_the_place(files, tmp_path):
    files.write("kprobe_events", "p:ev coming:act told=@coming_number:u32\n")
    files.write("events/kprobes/ev/enable", "1")
    source = tmp_path / "coming.c"
    source.write_text("unsigned coming_number = 42; __attribute__((noipa)) void act(void) { coming_number++; }\n")
    module = sandbox.load(source, name="coming")
    module["act"]()
    try:
        assert [line.partition(") ")[2] for line in recorded(files)] == ["told=42"]
    finally:
        files.write("events/kprobes/enable", "0")
        files.write("kprobe_events", "")
        module.unload()


def test_pe6_6_the_profile_has_a_line_for_each_probe(machine, files):
    files.write("kprobe_events", "p:two __sys_listen\np:two __sys_bind\nr:told __sys_listen\n")
    files.write("events/kprobes/two/enable", "1")
    machine.hit(["listen", "3", "1", "2"])
    assert profile(files) == [("two", "2", "0"), ("two", "0", "0"), ("told", "0", "0")]
    assert files.read("kprobe_profile").startswith(f"  {'two':<44} {2:15} {0:15}\n")


def test_pe7b_3_a_name_without_a_group_is_deleted_in_every_group(files):
    files.write("kprobe_events", "p:one/ev vfs_read\np:two/ev vfs_read\np:one/other vfs_read\n")
    files.write("kprobe_events", "-:ev\n", append=True)
    assert files.read("kprobe_events") == "p:one/other vfs_read\n"


def test_pe7b_5_deletions_that_fail_are_not_logged(files):
    files.write("kprobe_events", "p:ev vfs_read\n")
    files.write("events/kprobes/ev/enable", "1")
    failures = [("-:nosuch", errno.ENOENT), ("-", errno.EINVAL), ("-:", errno.EINVAL), ("-:ev", errno.EBUSY)]
    for line, number in failures:
        assert refused(files, "kprobe_events", line) == number
        assert refused(files, "dynamic_events", line) == number
    assert refused(files, "dynamic_events", "!ev") == errno.EINVAL
    assert files.read("error_log") == ""


def test_pe8_6_refusals_that_are_not_logged(files):
    for line in ("x:ev vfs_read", "p", "p:ev", "p /bin/sh:0x10", "!p:ev vfs_read"):
        assert refused(files, "kprobe_events", line) == errno.EINVAL, line
    many = "p vfs_read " + " ".join(f"a{number}=%ax" for number in range(129))
    assert refused(files, "kprobe_events", many) == errno.E2BIG
    assert files.read("error_log") == ""


def test_pe9_3_calls_without_a_free_instance_are_misses(files, tmp_path):
    source = tmp_path / "deep.c"
    source.write_text("long deep(long n) { return n ? deep(n - 1) + 1 : 0; }\n")
    module = sandbox.load(source, name="deep")
    files.write("kprobe_events", "r2:told deep:deep\np:asked deep:deep\n")
    files.write("events/kprobes/enable", "1")
    assert module["deep"](4) == 4
    assert profile(files) == [("told", "2", "3"), ("asked", "5", "0")]
    files.write("events/kprobes/enable", "0")
    files.write("kprobe_events", "")
    module.unload()


def test_pe9_4_a_record_in_each_instance_that_has_it_enabled(machine, files):
    for name in ("one", "two"):
        files.mkdir(f"instances/{name}")
    try:
        files.write("kprobe_events", "p:ev __sys_listen fd=%di:s32\n")
        files.write("events/kprobes/ev/enable", "1")
        files.write("instances/one/events/kprobes/ev/enable", "1")
        machine.hit(["listen", "3", "1"])
        files.write("events/kprobes/ev/enable", "0")
        machine.hit(["listen", "4", "1"])
        files.write("instances/one/events/kprobes/ev/enable", "0")
        machine.hit(["listen", "5", "1"])
        found = {name: recorded(files, name) for name in ("trace", "instances/one/trace", "instances/two/trace")}
    finally:
        for name in ("one", "two"):
            files.rmdir(f"instances/{name}")
    assert [[line.rpartition("=")[2] for line in lines] for lines in found.values()] == [["3"], ["3", "4"], []]
    assert profile(files) == [("ev", "2", "0")], "one hit each, however many instances record it"


def test_te10_1_what_an_instance_has_and_what_only_the_top_level_has(files):
    files.mkdir("instances/one")
    try:
        there = set(files.listdir("instances/one"))
    finally:
        files.rmdir("instances/one")
    assert there >= {
        "trace", "trace_pipe", "tracing_on", "trace_marker", "trace_marker_raw", "trace_options", "options", "per_cpu",
        "buffer_size_kb", "buffer_total_size_kb", "buffer_percent", "buffer_subbuf_size_kb", "trace_clock", "snapshot",
        "error_log", "current_tracer", "available_tracers", "events", "set_event", "set_event_pid", "free_buffer",
        "set_event_notrace_pid", "set_ftrace_filter", "set_ftrace_notrace", "set_ftrace_pid", "set_ftrace_notrace_pid",
        "tracing_cpumask", "timestamp_mode", "tracing_max_latency",
    }  # fmt: skip
    assert not there & {
        "kprobe_events", "dynamic_events", "kprobe_profile", "README", "available_events", "available_filter_functions",
        "enabled_functions", "saved_cmdlines", "function_profile_enabled", "trace_stat", "instances",
    }  # fmt: skip


def test_te10_2_making_and_removing_instances(files):
    def number(call, *arguments):
        with pytest.raises(OSError) as caught:
            call(*arguments)
        return caught.value.errno

    files.write("kprobe_events", "p:ev __sys_listen\n")
    files.mkdir("instances/one")
    assert number(files.mkdir, "instances/one") == errno.EEXIST
    assert number(files.mkdir, "events/one") == number(files.mkdir, "one") == errno.EPERM
    assert number(files.rmdir, "instances/two") == errno.ENOENT
    with files.open("instances/one/events/kprobes/ev/enable"):
        assert number(files.rmdir, "instances/one") == errno.EBUSY
    files.write("instances/one/events/kprobes/ev/enable", "1")
    assert refused(files, "kprobe_events", "-:ev") == errno.EBUSY
    files.rmdir("instances/one")
    files.write("kprobe_events", "-:ev\n", append=True)


def test_pe4_16_an_empty_text_is_no_fault(machine, files):
    # fetch_store_string(): what the kernel's own memory holds has at least its NUL. In 6.12, strncpy_from_user_nofault()
    # alone gives 0 for an empty text, as for a fault; later kernels do not.
    files.write("kprobe_events", r"p:ev __sys_bind a=+0x300(%si):string b=+0(+0x40(%si)):string c=\"" + '"\n')
    files.write("events/kprobes/ev/enable", "1")
    files.write("events/kprobes/ev/filter", 'a == "" && b != ""')
    machine.hit(["bind", "3", "16"])
    assert [line.partition(") a=")[2] for line in recorded(files)] == ['"" b=(fault) c=""']


def test_pe7b_1_the_place_of_an_exit_event_has_no_suffix_in_a_deletion(files):
    # trace_fprobe_match_command_head() compares the symbol alone
    files.write("dynamic_events", "f:out vfs_read%return a=$retval\n")
    assert refused(files, "dynamic_events", "-:out vfs_read%return") == errno.ENOENT
    files.write("dynamic_events", "-:out vfs_read a=$retval\n", append=True)
    assert files.read("dynamic_events") == ""


def test_pe7b_1_a_deletion_compares_the_first_63_characters_of_an_argument(files):
    # trace_probe_match_command_args() prints NAME=BODY to a buffer of 64 bytes
    argument = "a_name_of_thirty_two_characters_=+0(+0(+0(+0(+0(+0(%di)))))):u64"
    assert len(argument) == 64
    files.write("kprobe_events", f"p:ev vfs_read {argument}\n")
    assert refused(files, "kprobe_events", f"-:ev vfs_read {argument}") == errno.ENOENT
    files.write("kprobe_events", f"-:ev vfs_read {argument[:63]}\n", append=True)
    assert files.read("kprobe_events") == ""


def test_pe4_10_the_bytes_of_an_immediate_string_are_those_that_were_written(machine, files):
    files.write("kprobe_events", 'p:ev __sys_listen a=\\"caf\u00e9" b=\\"\u6f22" c=\\""\n')
    files.write("events/kprobes/ev/enable", "1")
    machine.hit(["listen", "3", "1"])
    assert [line.partition(") ")[2] for line in recorded(files)] == ['a="caf\u00e9" b="\u6f22" c=""']


def test_pe4_23_only_the_elements_of_an_array_that_cannot_be_read_are_zero(machine, files, monkeypatch):
    # process_fetch_insn_bottom() reads each element on its own. The memory ends at +0x3000.
    monkeypatch.setattr(machine, "_image", machine._image[:-4] + b"\x12\x34\x56\x78")
    arguments = ["a=+0x2ffc(%si):x32[3]", "b=+0x2ffd(%si):x16[2]", "c=+0x2ffe(%si):b4@4/8[4]", "d=+0(+0x38(%si)):s8[2]"]
    files.write("kprobe_events", f"p:ev __sys_bind {' '.join(arguments)} e=+0x2ffc(%si):char[3]\n")
    files.write("events/kprobes/ev/enable", "1")
    machine.hit(["bind", "3", "16"])
    expected = "a={0x78563412,0x0,0x0} b={0x5634,0x0} c={5,7,0,0} d={0,0} e={'\x12','4','V'}"
    assert [line.partition(") ")[2] for line in recorded(files)] == [expected]


@pytest.mark.parametrize("first", ["event", "tracer"])
def test_te3_6_a_return_under_function_graph_is_to_the_real_caller(machine, files, first):
    files.write("kprobe_events", "r:back __sys_listen\nr:again __sys_listen\n")
    files.write("set_ftrace_filter", "__sys_listen\n")
    steps = [("events/kprobes/enable", "1"), ("current_tracer", "function_graph")]
    for name, text in steps if first == "event" else reversed(steps):
        files.write(name, text)
    machine.hit(["listen", "3", "4"])
    shown = [line for line in files.read("trace").splitlines() if "/* back" in line or "/* again" in line]
    files.write("current_tracer", "nop")
    files.write("set_ftrace_filter", "")
    assert len(shown) == 2 and all("(__x64_sys_listen+0x" in line for line in shown)


@pytest.mark.parametrize("line", ["p:sched/sched_switch __sys_listen", "f:sched/sched_wakeup __sys_listen"])
def test_pe3_6_the_name_of_a_static_event_is_taken(files, line):
    assert refused(files, "dynamic_events", line) == errno.EEXIST
    message, _, caret = files.read("error_log").splitlines()[-3:]
    assert message.endswith("Given group/event name is already used by another event") and caret == " " * 11 + "^"
    files.write("dynamic_events", line.replace("switch", "other").replace("wakeup", "other"), append=True)
    assert files.read("events/sched/enable") == "0\n"


def test_an_open_of_the_machine_has_the_flags_and_the_result_of_a_kernels(machine, files):
    files.write("kprobe_events", "r:o do_sys_openat2 filename:string f=how->flags:x32 m=how->mode:x16 $retval\n")
    files.write("events/kprobes/o/enable", "1")
    machine.hit(["open", "nosuch", ",", "open", "trace"])
    machine.opened("error_log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    assert [line.partition(") ")[2] for line in recorded(files)] == [
        'filename="nosuch" f=0x8000 m=0x0 arg4=-2',
        'filename="trace" f=0x8000 m=0x0 arg4=3',
        'filename="error_log" f=0x8241 m=0x1b6 arg4=3',
    ]


def test_pe5_7_arguments_of_a_tracepoint_are_those_of_its_stub_after_the_first(files):
    files.write(
        "dynamic_events",
        "t sched_switch $arg*\nt:n sched_switch prev->pid n=next->comm:string $arg4\nt:f vfs_read $arg1\n",
    )
    assert files.read("dynamic_events").splitlines() == [
        "t:tracepoints/sched_switch sched_switch preempt=preempt prev=prev next=next prev_state=prev_state",
        "t:tracepoints/n sched_switch arg1=prev->pid n=next->comm:string prev_state=prev_state",
        "t:tracepoints/f vfs_read buf=buf",
    ]
    assert "\tfield:s32 arg1;" in files.read("events/tracepoints/n/format")
    for argument in ("__data", "$arg5"):
        assert refused(files, "dynamic_events", f"t:x sched_switch {argument}") == errno.ENOENT
    files.write("dynamic_events", "t:u nosuch $arg1\n", append=True)
    assert files.read("dynamic_events").splitlines()[-1] == "t:tracepoints/u nosuch arg1=$arg1"
