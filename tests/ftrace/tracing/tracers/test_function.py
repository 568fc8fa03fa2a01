"""The tracer function: its records, options and filters (TE-4.12, TE-9.1, TE-9.3, TE-9.7)."""

from __future__ import annotations

import threading

from isolation import isolated
from traced import error_of, program, shown, tracing


@isolated
def test_te9_1_a_record_for_each_entry_with_its_caller() -> None:
    from fprobe.tracefs import tracefs

    module = program()
    with tracing("function"):
        module["outer"](1)
        assert shown() == [
            "outer <-sandbox_guard",
            "middle <-outer",
            "leaf <-middle",
            "other <-middle",
            "leaf <-middle",
            "leaf <-outer",
        ]
        tracefs.write("trace_options", "noprint-parent")
        assert shown()[:2] == ["outer", "middle"]
        tracefs.write("trace_options", "print-parent")
        tracefs.write("trace_options", "sym-offset")
        assert shown()[1].startswith("middle+0x0/") and " <-outer+0x" in shown()[1]
        tracefs.write("tracing_on", "0")
        module["leaf"](1)
        assert len(shown()) == 6
    assert shown() == [] and tracefs.read("current_tracer") == "nop\n"


@isolated
def test_te9_3_the_functions_that_set_ftrace_filter_selects() -> None:
    from fprobe.tracefs import tracefs

    module = program()
    tracefs.write("set_ftrace_filter", "leaf\nother\n")
    tracefs.write("set_ftrace_notrace", "other\n")
    with tracing("function"):
        module["outer"](1)
        assert shown() == ["leaf <-middle", "leaf <-middle", "leaf <-outer"]
        assert tracefs.read("enabled_functions").startswith("leaf [calls] (1)")
        assert "->function_trace_call+0x0/" in tracefs.read("enabled_functions")
        tracefs.write("set_ftrace_filter", "middle\n")  # while it records
        tracefs.write("trace", "")
        module["outer"](1)
        assert shown() == ["middle <-outer"]


@isolated
def test_te9_1_func_stack_trace_records_the_stack_of_each_entry() -> None:
    from fprobe.tracefs import tracefs

    def stack(*functions: str) -> list[str]:
        return [f" => {name}" for name in ("[FTRACE TRAMPOLINE]", *functions)]

    module = program()
    tracefs.write("set_ftrace_filter", "leaf\nouter\n")
    with tracing("function"):
        module["leaf"](1)
        tracefs.write("options/func_stack_trace", "1")  # while it records
        assert tracefs.read("trace_options").splitlines()[-2] == "func_stack_trace"
        assert "->function_stack_trace_call+0x0/" in tracefs.read("enabled_functions")
        module["outer"](1)
        assert shown() == [
            "leaf <-sandbox_guard",
            *("outer <-sandbox_guard", "<stack trace>", *stack("outer")),
            *("leaf <-middle", "<stack trace>", *stack("leaf", "middle", "outer")),
            *("leaf <-middle", "<stack trace>", *stack("leaf", "middle", "outer")),
            *("leaf <-outer", "<stack trace>", *stack("leaf", "outer")),
        ]
        tracefs.write("tracing_on", "0")
        module["leaf"](1)
        tracefs.write("tracing_on", "1")
        tracefs.write("trace", "")
        tracefs.write("options/func-no-repeats", "1")
        module["many"](3)
        assert shown() == ["leaf <-many", "<stack trace>", *stack("leaf", "many")]
        tracefs.write("options/func-no-repeats", "0")
        tracefs.write("options/func_stack_trace", "0")
        tracefs.write("trace", "")
        module["leaf"](1)
        assert shown() == ["leaf <-sandbox_guard"]


@isolated
def test_func_stack_trace_walks_through_hooked_calls_and_shared_entries() -> None:
    import fprobe
    from fprobe.tracefs import tracefs

    module = program()
    hooked = fprobe.attach("outer", exit=lambda *_: None).attach()  # the return address of outer's call is a stub's
    counted = fprobe.attach("leaf", action=fprobe.Count()).attach()  # leaf's entry has two probes
    tracefs.write("options/func_stack_trace", "1")
    tracefs.write("set_ftrace_filter", "leaf\n")
    with tracing("function"):
        assert module["outer"](1) == 3
        stack = [" => [FTRACE TRAMPOLINE]", " => leaf", " => middle", " => outer"]
        assert shown()[:6] == ["leaf <-middle", "<stack trace>", *stack]
        assert shown().count("<stack trace>") == 3
    counted.detach()
    hooked.detach()


TAIL = """
define i64 @leaf(i64 %x) noinline { %r = add i64 %x, 1  ret i64 %r }
define i64 @jumps(i64 %x) noinline { %r = musttail call i64 @leaf(i64 %x)  ret i64 %r }
"""


@isolated
def test_a_function_that_was_jumped_to_shows_its_true_caller() -> None:
    import sandbox
    from fprobe.tracefs import tracefs

    module = sandbox.load(TAIL, name="calls")
    tracefs.write("dynamic_events", "f:back jumps%return\n")
    tracefs.write("events/fprobes/back/enable", "1")  # so that the return of `jumps` is hooked
    with tracing("function"):
        module["jumps"](1)
        calls = [line for line in shown() if "<-" in line and "back" not in line]
    assert calls == ["jumps <-sandbox_guard", "leaf <-sandbox_guard"]
    tracefs.write("events/enable", "0")
    tracefs.write("dynamic_events", "")


@isolated
def test_te9_1_func_no_repeats_counts_the_same_call() -> None:
    from fprobe.tracefs import tracefs

    module = program()
    with tracing("function"):
        tracefs.write("trace_options", "func-no-repeats")
        module["many"](70_000)
        module["other"](1)
        lines = shown()
        assert [line.partition(", ")[0] for line in lines] == [
            "many <-sandbox_guard",
            "leaf <-many",
            "leaf <-many (repeats: 65535",
            "leaf <-many",
            f"leaf <-many (repeats: {70_000 - 65_537}",
            "other <-sandbox_guard",
        ]
        tracefs.write("trace", "")
        tracefs.write("trace_options", "nofunc-no-repeats")
        module["many"](3)
        assert shown() == ["many <-sandbox_guard", *["leaf <-many"] * 3]
    assert error_of(tracefs.write, "trace_options", "func-no-repeats") == "EINVAL"  # of the current tracer alone
    assert tracefs.read("options/func-no-repeats") == "0\n"


@isolated
def test_te9_1_func_no_repeats_goes_on_with_the_next_thread_of_a_slot() -> None:
    import threading
    import time
    from pathlib import Path

    from fprobe.tracefs import tracefs

    module = program()

    def run(calls: int) -> None:
        thread = threading.Thread(target=lambda: [module["leaf"](1) for _ in range(calls)])
        thread.start()
        thread.join()
        while Path(f"/proc/self/task/{thread.native_id}").exists():
            time.sleep(0.001)

    tracefs.write("set_ftrace_filter", "leaf other")
    with tracing("function"):
        tracefs.write("options/func-no-repeats", "1")
        run(3)
        run(2)
        thread = threading.Thread(target=module["other"], args=(1,))
        thread.start()
        thread.join()
        tracefs.write("options/func-no-repeats", "0")
        assert [line.partition(", ")[0] for line in shown()] == [
            "leaf <-sandbox_guard",
            "leaf <-sandbox_guard (repeats: 4",
            "other <-sandbox_guard",
        ]


@isolated
def test_te9_7_te4_9_only_some_threads_and_slots_are_recorded() -> None:
    from fprobe.tracefs import tracefs

    module = program()
    main = threading.get_native_id()

    def in_a_thread() -> None:
        thread = threading.Thread(target=module["other"], args=(1,))
        thread.start()
        thread.join()

    def recorded() -> list[str]:
        tracefs.write("trace", "")
        module["leaf"](1)
        in_a_thread()
        return shown()

    both = ["leaf <-sandbox_guard", "other <-sandbox_guard"]
    assert tracefs.read("set_ftrace_pid") == tracefs.read("set_ftrace_notrace_pid") == "no pid\n"
    with tracing("function"):
        assert recorded() == both
        tracefs.write("set_ftrace_pid", f"{main} 999999\n")
        assert tracefs.read("set_ftrace_pid").split() == sorted([str(main), "999999"], key=int)
        assert recorded() == both[:1]
        for wrong, error in (("5 abc 6", "EINVAL"), ("-1", "EINVAL"), ("99999999999", "EPERM")):
            assert error_of(lambda text: tracefs.write("set_ftrace_pid", text, append=True), wrong) == error
        assert recorded() == both[:1]
        tracefs.write("set_ftrace_notrace_pid", f"{main}\n")
        assert recorded() == []
        tracefs.write("set_ftrace_pid", "0\n")
        tracefs.write("set_ftrace_notrace_pid", "\n")
        assert recorded() == [] and tracefs.read("set_ftrace_pid") == "0\n"
        tracefs.write("set_ftrace_pid", "\n")
        assert recorded() == both
        slots = len(tracefs.listdir("per_cpu"))
        everything = tracefs.read("tracing_cpumask")
        assert int(everything, 16) == (1 << slots) - 1
        tracefs.write("tracing_cpumask", "\n")
        assert recorded() == [] and int(tracefs.read("tracing_cpumask"), 16) == 0
        assert error_of(tracefs.write, "tracing_cpumask", f"{1 << slots:x}") == "EOVERFLOW"
        assert error_of(tracefs.write, "tracing_cpumask", "0x1") == "EINVAL"
        tracefs.write("tracing_cpumask", everything)
        assert recorded() == both


@isolated
def test_te4_12_te4_1_switching_tracers() -> None:
    from fprobe.tracefs import tracefs

    assert tracefs.read("available_tracers") == "function_graph function nop\n"
    assert error_of(tracefs.write, "current_tracer", "nosuch") == "EINVAL"
    with tracefs.open("trace_pipe"):
        assert error_of(tracefs.write, "current_tracer", "function") == "EBUSY"
    assert tracefs.read("trace_options").splitlines()[-2:] == ["notest_nop_accept", "notest_nop_refuse"]
    with tracing(" function \n"):
        assert tracefs.read("trace_options").splitlines()[-2:] == ["nofunc_stack_trace", "nofunc-no-repeats"]
        assert error_of(tracefs.write, "options/test_nop_refuse", "1") == "EINVAL"
        from ftrace.core.tracer import detach_all

        detach_all()
        assert tracefs.read("current_tracer") == "nop\n"


@isolated
def test_the_formats_of_the_tracers_records() -> None:
    from fprobe.tracefs import tracefs

    assert "\tfield:unsigned long parent_ip;\toffset:16;\tsize:8;\tsigned:0;\n" in tracefs.read(
        "events/ftrace/function/format"
    )
    assert "\tfield:int depth;\toffset:16;\tsize:4;\tsigned:1;\n" in tracefs.read(
        "events/ftrace/funcgraph_entry/format"
    )
    text = tracefs.read("events/ftrace/funcgraph_exit/format")
    assert "\tfield:unsigned long long rettime;\toffset:40;\tsize:8;\tsigned:0;\n" in text
    ids = {name: int(tracefs.read(f"events/ftrace/{name}/id")) for name in tracefs.listdir("events/ftrace")}
    assert ids["function"] == 1 and ids["funcgraph_exit"] == 10 and ids["funcgraph_entry"] == 11
    assert ids["func_repeats"] == 19
