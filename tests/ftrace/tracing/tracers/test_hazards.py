"""Tracers under signals, forks, threads, recursion, and modules that go."""

from __future__ import annotations

import threading

import pytest
from isolation import isolated
from traced import CALLS, program, shown, tracing

ALARMS = (
    """
#include <signal.h>
#include <string.h>
#include <sys/time.h>
"""
    + CALLS
    + """
static void handle(int number) { outer(number); }
CALL long interrupted(int rounds)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    sigaction(SIGVTALRM, &action, 0);
    struct itimerval timer = {{0, 200}, {0, 200}};
    setitimer(ITIMER_VIRTUAL, &timer, 0);
    for (int i = 0; i < rounds; i++)
        outer(i);
    memset(&timer, 0, sizeof timer);
    setitimer(ITIMER_VIRTUAL, &timer, 0);
    return rounds;
}
"""
)


@isolated(timeout=60)
def test_calls_in_signal_handlers_are_nested_where_they_interrupted() -> None:
    from fprobe.tracefs import tracefs

    module = program(ALARMS)
    tracefs.write("buffer_size_kb", "6000")
    with tracing("function_graph"):
        assert module["interrupted"](2000) == 2000
        module["leaf"](1)
        lines = shown()
    # Each entry is closed at its own depth, whatever was interrupted.
    depths: list[int] = []
    for line in lines:
        text = line.partition("|  ")[2]
        depth = (len(text) - len(text.lstrip())) // 2
        if text.endswith("{"):
            assert depth == len(depths), line
            depths.append(depth)
        elif text.lstrip().startswith("}"):
            assert depths.pop() == depth, line
            assert "/*" not in text, line
        else:
            assert depth == len(depths), line
    assert depths == [] and lines[-1].endswith("|  leaf();")


@pytest.mark.stress
@pytest.mark.parametrize("rounds", [12, pytest.param(40, marks=pytest.mark.stress)])
@isolated(timeout=60)
def test_tracers_are_switched_while_four_threads_run(rounds: int) -> None:
    from fprobe.tracefs import tracefs

    module = program()
    tracefs.write("buffer_size_kb", "16")
    done, running = threading.Event(), threading.Barrier(5)
    results: set[int] = set()

    def work() -> None:
        down = module["down"].pointer
        results.add(down(50))
        running.wait()
        while not done.is_set():
            results.add(down(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    running.wait()
    for round_ in range(rounds):
        for name in ("function", "function_graph", "nop"):
            tracefs.write("current_tracer", name)
            tracefs.write("function_profile_enabled", str(round_ & 1))
            if name != "nop":
                tracefs.read("trace")
    done.set()
    for thread in threads:
        thread.join()
    assert results == {50}
    tracefs.write("function_profile_enabled", "0")
    assert shown() == [] or all("down" in line for line in shown())


@isolated
def test_a_child_of_a_fork_records_for_itself() -> None:
    import os

    from fprobe.tracefs import tracefs

    module = program()
    tracefs.mkdir("instances/one")
    with tracing("function_graph"), tracing("function", "instances/one/"):
        module["leaf"](1)
        child = os.fork()
        if not child:
            status = 1
            try:
                module["middle"](1)
                graph = [line.partition("|  ")[2] for line in shown()]
                functions = [line.partition(" ")[0] for line in shown("instances/one/trace")]
                good = graph == ["middle() {", "  leaf();", "  other();", "  leaf();", "}"]
                good = good and functions == ["middle", "leaf", "other", "leaf"]
                tracefs.write("current_tracer", "nop")
                status = 0 if good and shown() == [] else 1
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        module["leaf"](1)
        assert shown() == ["N us |  leaf();"] * 2 and len(shown("instances/one/trace")) == 2
    tracefs.rmdir("instances/one")


@isolated
def test_a_module_goes_and_another_comes_while_functions_are_recorded() -> None:
    from fprobe.tracefs import tracefs

    module = program()
    tracefs.write("set_graph_function", "middle\n")
    with tracing("function_graph"):
        module["outer"](1)
        module.unload()
        assert len(shown()) == 5 and "0x" in shown()[0]
        assert tracefs.read("set_graph_function").startswith("####")
        tracefs.write("set_graph_function", "\n")
        tracefs.write("trace", "")
        again = program()
        again["middle"](1)
        assert shown()[1] == "N us |    leaf();"


@isolated
def test_a_python_handler_that_calls_and_reads_while_the_tracer_records() -> None:
    import fprobe
    from fprobe.tracefs import tracefs

    module = program()
    seen = []

    def handler(fp, ip, ret_ip, regs, data):
        seen.append(len(tracefs.read("trace").splitlines()))
        module["other"](1)

    with tracing("function_graph"), fprobe.attach("leaf", entry=handler, exit=handler):
        assert module["middle"](1) == 3
        assert len(seen) == 4
        calls = [line.partition("|  ")[2].strip() for line in shown()]
        assert calls[0] == "middle() {" and calls[-1] == "}" and len(calls) == 9
        assert calls.count("leaf();") == 2 and calls.count("other();") == 5


@isolated
def test_calls_that_are_too_deep_are_counted_as_overruns() -> None:
    import struct

    from ftrace.tracing.instances.trace_array import global_trace

    module = program()
    with tracing("function_graph"):
        assert module["down"](20_000) == 20_000
        returns = [record for record in global_trace().buffer.records() if record.common.type == 10]
        overruns = [struct.unpack_from("<I", record.data, 28)[0] for record in returns]
        assert len(returns) == 16_383 and set(overruns) == {20_001 - 16_383}
