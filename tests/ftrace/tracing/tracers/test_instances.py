"""Instances: trace arrays under instances/ (TE-10), and the threads that events are recorded for (TE-5.4)."""

from __future__ import annotations

import threading

from isolation import isolated
from traced import error_of, program, shown, tracing

FILES = {
    "available_tracers",
    "buffer_percent",
    "buffer_size_kb",
    "buffer_subbuf_size_kb",
    "buffer_total_size_kb",
    "current_tracer",
    "error_log",
    "events",
    "free_buffer",
    "options",
    "per_cpu",
    "set_event",
    "set_event_notrace_pid",
    "set_event_pid",
    "set_ftrace_filter",
    "set_ftrace_notrace",
    "set_ftrace_notrace_pid",
    "set_ftrace_pid",
    "snapshot",
    "timestamp_mode",
    "trace",
    "trace_clock",
    "trace_marker",
    "trace_marker_raw",
    "trace_options",
    "trace_pipe",
    "tracing_cpumask",
    "tracing_max_latency",
    "tracing_on",
}


@isolated
def test_te10_1_te10_3_what_is_in_a_new_instance() -> None:
    from fprobe.tracefs import tracefs

    tracefs.write("options/event-fork", "1")
    tracefs.write("options/sym-offset", "1")
    tracefs.mkdir("instances/one")
    assert set(tracefs.listdir("instances/one")) == FILES
    options = tracefs.read("instances/one/trace_options").split()
    assert {"noevent-fork", "sym-offset", "notrace_printk_dest", "record-cmd"} <= set(options)
    assert set(tracefs.listdir("options")) - set(tracefs.listdir("instances/one/options")) == {
        "trace_printk",
        "printk-msg-only",
        "record-cmd",
    }
    assert tracefs.read("buffer_size_kb").startswith("7 (expanded")
    assert tracefs.read("instances/one/buffer_size_kb") == "1410\n"
    tracefs.write("instances/one/trace_options", "nosym-offset")
    assert tracefs.read("options/sym-offset") == "1\n"
    assert error_of(tracefs.mkdir, "instances/one") == "EEXIST"
    for path in ("one", "events/one", "instances/one/two"):
        assert error_of(tracefs.mkdir, path) == "EPERM", path
    assert error_of(tracefs.rmdir, "instances/none") == "ENOENT"
    tracefs.rmdir("instances/one")
    assert tracefs.listdir("instances") == []
    assert error_of(tracefs.read, "instances/one/trace") == "ENOENT"


@isolated
def test_te10_1_te10_2_events_filters_triggers_and_switches_of_its_own() -> None:
    from fprobe.tracefs import tracefs

    module = program()
    tracefs.write("dynamic_events", "f:ev leaf x=$arg1\n")
    one, event = "instances/one/", "events/fprobes/ev/"
    tracefs.mkdir("instances/one")
    tracefs.write(f"{one}set_event", "fprobes:ev\n")
    assert (tracefs.read(f"{one}{event}enable"), tracefs.read(f"{event}enable")) == ("1\n", "0\n")
    assert (tracefs.read(f"{one}events/enable"), tracefs.read("events/enable")) == ("X\n", "0\n")
    tracefs.write(f"{one}{event}filter", "x > 1")
    assert error_of(tracefs.write, f"{one}{event}filter", "nosuch > 1") == "EINVAL"
    assert "nosuch" in tracefs.read(f"{one}error_log") and tracefs.read("error_log") == ""
    tracefs.write(f"{one}{event}filter", "x > 1")
    for x in (1, 2):
        module["leaf"](x)
    assert [line[-5:] for line in shown(f"{one}trace")] == ["x=0x2"] and shown() == []
    tracefs.write(f"{event}enable", "1")
    module["leaf"](3)
    assert [line[-5:] for line in shown()] == ["x=0x3"]
    assert [line[-5:] for line in shown(f"{one}trace")] == ["x=0x2", "x=0x3"]
    tracefs.write(f"{one}{event}trigger", "traceoff if x == 4")
    assert tracefs.read(f"{event}trigger").startswith("# Available triggers")
    for x in (4, 5):
        module["leaf"](x)
    assert (tracefs.read(f"{one}tracing_on"), tracefs.read("tracing_on")) == ("0\n", "1\n")
    assert [line[-5:] for line in shown()] == ["x=0x3", "x=0x4", "x=0x5"]
    assert "x=0x5" not in {line[-5:] for line in shown(f"{one}trace")}
    tracefs.write(f"{event}enable", "0")
    assert error_of(tracefs.write, "dynamic_events", "") == "EBUSY"
    with tracefs.open(f"{one}{event}enable"):
        assert error_of(tracefs.rmdir, "instances/one") == "EBUSY"
    tracefs.rmdir("instances/one")
    tracefs.write("dynamic_events", "-:fprobes/ev\n", append=True)
    module["leaf"](6)


@isolated
def test_te10_1_commands_of_set_ftrace_filter_act_on_their_instance() -> None:
    from fprobe.tracefs import tracefs

    one, everything = "instances/one/", "#### all functions enabled ####\n"
    module = program()
    tracefs.mkdir("instances/one")
    tracefs.write("dynamic_events", "f:ev leaf x=$arg1\n")
    tracefs.write("set_ftrace_filter", "other:traceoff", append=True)  # that of the top level is another one
    for line in ("other:traceoff:1", "leaf:stacktrace", "middle:enable_event:fprobes:ev"):
        tracefs.write(f"{one}set_ftrace_filter", line, append=True)
    assert tracefs.read(f"{one}set_ftrace_filter") == everything + (
        "middle:enable_event:fprobes:ev:unlimited\nleaf:stacktrace:unlimited\nother:traceoff:count=1\n"
    )
    assert tracefs.read("set_ftrace_filter") == everything + "other:traceoff:unlimited\n"
    assert (tracefs.read(f"{one}events/fprobes/ev/enable"), tracefs.read("events/fprobes/ev/enable")) == ("0*\n", "0\n")
    tracefs.write("set_ftrace_filter", "!other:traceoff", append=True)
    module["leaf"](5)
    assert shown(f"{one}trace") == ["<stack trace>", " => leaf"] and shown() == []
    module["middle"](1)  # enables the event, calls leaf, and other, which stops this instance
    assert sum("x=0x1" in line for line in shown(f"{one}trace")) == 1 and shown() == []
    assert (tracefs.read(f"{one}tracing_on"), tracefs.read("tracing_on")) == ("0\n", "1\n")
    assert "other:traceoff:count=0" in tracefs.read(f"{one}set_ftrace_filter")
    assert error_of(tracefs.write, f"{one}set_ftrace_notrace", "leaf:traceoff\n") == "EINVAL"
    tracefs.rmdir("instances/one")
    tracefs.write("dynamic_events", "")
    assert tracefs.read("enabled_functions") == ""
    module["outer"](1)


@isolated
def test_te10_1_a_tracer_and_functions_of_its_own() -> None:
    from fprobe.tracefs import tracefs

    module = program()
    tracefs.mkdir("instances/one")
    tracefs.write("instances/one/set_ftrace_filter", "leaf\n")
    assert tracefs.read("set_ftrace_filter").startswith("####")
    with tracing("function_graph"), tracing("function", "instances/one/"):
        module["middle"](1)
        assert shown("instances/one/trace") == ["leaf <-middle", "leaf <-middle"]
        assert [line.partition("|  ")[2] for line in shown()] == [
            "middle() {",
            "  leaf();",
            "  other();",
            "  leaf();",
            "}",
        ]
        assert tracefs.read("instances/one/current_tracer") == "function\n"
        with tracing("function_graph", "instances/one/"):
            module["leaf"](1)
            assert shown("instances/one/trace") == ["N us |  leaf();"]
        tracefs.rmdir("instances/one")  # while its tracer records
        assert len(shown()) == 6
        tracefs.mkdir("instances/one")
        assert tracefs.read("instances/one/set_ftrace_filter").startswith("####")
    tracefs.rmdir("instances/one")


@isolated
def test_as_many_instances_as_an_event_can_record_into_and_no_more() -> None:
    from fprobe.tracefs import tracefs

    module = program()
    tracefs.write("dynamic_events", "f:ev leaf\n")
    made = []
    while len(made) < 100:
        name = f"instances/i{len(made)}"
        try:
            tracefs.mkdir(name)
        except OSError as full:
            assert full.errno == 12 and "remove one first" in str(full)
            break
        made.append(name)
        tracefs.write(f"{name}/events/enable", "1")
    assert len(made) == 31
    tracefs.write("events/enable", "1")
    module["leaf"](1)
    assert [len(shown(f"{name}/trace")) for name in ("", *made)] == [1] * 32
    for name in made:
        tracefs.rmdir(name)
    module["leaf"](1)
    assert len(shown()) == 2
    tracefs.write("events/enable", "0")


@isolated(timeout=60)
def test_te10_4_instances_come_and_go_while_threads_hit_and_read() -> None:
    import errno
    import time

    from fprobe.tracefs import tracefs

    module = program()
    tracefs.write("dynamic_events", "f:ev leaf x=$arg1\n")
    failures: list[BaseException] = []
    done = threading.Event()

    def until_done(work) -> threading.Thread:
        def run() -> None:
            try:
                while not done.is_set():
                    work()
                    time.sleep(0.002)
            except BaseException as failed:
                failures.append(failed)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def tolerated(call, *arguments) -> None:
        try:
            call(*arguments)
        except OSError as failed:
            if failed.errno not in (errno.ENOENT, errno.EBUSY, errno.EEXIST, errno.ENODEV):
                raise

    many = module["many"].pointer
    threads = [until_done(lambda: many(20)) for _ in range(2)]
    threads.append(until_done(lambda: tolerated(tracefs.read, "instances/one/trace")))
    threads.append(until_done(lambda: tolerated(tracefs.write, "instances/one/events/enable", "1")))
    for _ in range(15):
        tracefs.mkdir("instances/one")
        tolerated(tracefs.write, "instances/one/current_tracer", "function")
        while "one" in tracefs.listdir("instances"):
            tolerated(tracefs.rmdir, "instances/one")
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    tracefs.write("dynamic_events", "")


@isolated
def test_te5_4_events_of_some_threads() -> None:
    from fprobe.tracefs import tracefs

    module = program()
    tracefs.write("dynamic_events", "f:ev leaf x=$arg1\n")
    tracefs.write("events/enable", "1")
    main = threading.get_native_id()

    def recorded() -> list[str]:
        tracefs.write("trace", "")
        module["leaf"](1)
        thread = threading.Thread(target=module["leaf"], args=(2,))
        thread.start()
        thread.join()
        return [line[-3:] for line in shown()]

    assert tracefs.read("set_event_pid") == "" and recorded() == ["0x1", "0x2"]
    tracefs.write("set_event_pid", f"{main}")
    assert recorded() == ["0x1"]
    tracefs.write("events/fprobes/ev/trigger", "traceoff if x == 2")  # not for a thread that is not recorded
    assert recorded() == ["0x1"] and tracefs.read("tracing_on") == "1\n"
    tracefs.write("events/fprobes/ev/trigger", "!traceoff if x == 2")
    tracefs.write("set_event_notrace_pid", f"{main}\n")
    tracefs.write("set_event_pid", "\n")
    assert recorded() == ["0x2"] and tracefs.read("set_event_notrace_pid") == f"{main}\n"
    tracefs.write("set_event_notrace_pid", "\n")
    tracefs.write("tracing_cpumask", "0")
    assert recorded() == []
    tracefs.write("events/enable", "0")


@isolated
def test_free_buffer_and_the_number_of_names() -> None:
    from fprobe.tracefs import tracefs

    module = program()
    with tracing("function"):
        module["leaf"](1)
        tracefs.write("free_buffer", "anything")
        assert len(shown()) == 1 and tracefs.read("tracing_on") == "1\n" and tracefs.read("buffer_size_kb") == "7\n"
        tracefs.write("options/disable_on_free", "1")
        tracefs.write("free_buffer", "")
        assert tracefs.read("tracing_on") == "0\n"
    for count, kept in (("1", "6552"), ("6553", "19659"), ("32768", "45874")):
        tracefs.write("saved_cmdlines_size", count)
        assert tracefs.read("saved_cmdlines_size") == f"{kept}\n"
    for wrong in ("0", "32769", "x", "\n"):
        assert error_of(tracefs.write, "saved_cmdlines_size", wrong) == "EINVAL"


@isolated
def test_pe9_4_a_hit_is_one_record_in_each_instance_that_has_the_event_enabled() -> None:
    from fprobe.tracefs import tracefs

    module = program()
    paths = ("", "instances/one/", "instances/two/", "instances/none/")
    for path in paths[1:]:
        tracefs.mkdir(path)
    tracefs.write("kprobe_events", "p:ev leaf x=%di:s32\n")
    for path in paths[:3]:
        tracefs.write(f"{path}events/kprobes/ev/enable", "1")
    tracefs.write("instances/two/events/kprobes/ev/filter", "x == 2")
    module["leaf"](1)
    module["leaf"](2)
    xs = [[line.rpartition("x=")[2] for line in shown(f"{path}trace")] for path in paths]
    assert xs == [["1", "2"], ["1", "2"], ["2"], []]
    tracefs.write("events/kprobes/ev/enable", "0")
    module["leaf"](3)
    xs = [[line.rpartition("x=")[2] for line in shown(f"{path}trace")] for path in paths]
    assert xs == [["1", "2"], ["1", "2", "3"], ["2"], []]
    for path in paths[1:]:
        tracefs.rmdir(path)
