"""The benchmark harness: rows are well formed and their counts add up. Times are not judged here."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from sampled import in_stress

from benchmarks import peers
from benchmarks.__main__ import all_rows, choose, main
from benchmarks.bars import BARS, judge
from benchmarks.measure import CountError, Result, Row, Sample, measure, summarise
from benchmarks.processes import ChildError, gather
from sandbox.symbols.perfmap import OPT_OUT

ROOT = Path(__file__).parent.parent
FIELDS = {"name", "added_ns", "baseline_ns", "min_ns", "max_ns", "hits", "missed", "lost"}
CALLS, ROUNDS, PROCESSES, FUNCTIONS = 1000, 1, 1, 200
SAMPLES = ROUNDS
SLOW = (
    "allocation.",
    "run.",
    "fork",
    "event.",
    "records.",
    "events.sustained",
    "attach.library",
    "attach.start",
    "attach.stopped",
    "attach.memory",
    "attach.both",
    "library.",
    "numba.",
    "handler.c",
    "runtime.",
    "tracefs.mount.",
)
"""Rows that take a second or more even here: under `stress`."""


SIZES = [f"--calls={CALLS}", f"--rounds={ROUNDS}", f"--processes={PROCESSES}", f"--functions={FUNCTIONS}"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in this process, which only starts those that measure."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as ended:  # argparse's
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def small(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run(*SIZES, *arguments)


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own, for tests of what that imports."""
    command = [sys.executable, "-m", "benchmarks", *SIZES, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)


FEW = (
    "fprobe.entry.native",
    "fprobe.both.native",
    "fprobe.tail",
    "fprobe.first_hit",
    "ref.swap",
    "attach.4",
    "threads.2",
)


@pytest.fixture(scope="module")
def few() -> dict[str, dict[str, float]]:
    return measured(list(FEW))


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, float]]:
    quick = [row.name for group in all_rows(CALLS, FUNCTIONS) for row in group if not row.name.startswith(SLOW)]
    return measured(quick)


def measured(names: list[str]) -> dict[str, dict[str, float]]:
    done = small("--json", *names)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


def test_a_few_rows_are_there_and_have_every_field(few: dict[str, dict[str, float]]) -> None:
    assert set(few) == set(FEW)
    for row in few.values():
        assert set(row) >= FIELDS
        assert row["min_ns"] <= row["added_ns"] <= row["max_ns"]


@pytest.mark.stress
def test_every_row_is_there_and_has_every_field(rows: dict[str, dict[str, float]]) -> None:
    probes = {"fprobe.entry.native", "fprobe.both.native", "fprobe.both.native.regs", "fprobe.both.native.recursive"}
    probes |= {
        "fprobe.entry.python",
        "fprobe.both.python",
        "fprobe.both.record",
        "fprobe.first_hit",
        "nop",
        "threads.2",
    }
    references = {"ref.call_inc", "ref.swap", "ref.rdtsc2", "ref.int3", "ref.ctypes2"}
    assert probes | references | {"attach.4", "attach.200", "sweep.200", "fprobe.both.native.among200"} <= set(rows)
    for row in rows.values():
        assert set(row) >= FIELDS
        assert row["min_ns"] <= row["added_ns"] <= row["max_ns"]


@pytest.mark.stress
@pytest.mark.parametrize("start", SLOW)
def test_every_slow_row_is_measured_or_skipped_with_a_reason(start: str) -> None:
    names = [row.name for group in all_rows(CALLS, FUNCTIONS) for row in group if row.name.startswith(start)]
    found = measured(names)
    assert set(found) == set(names)
    assert all("skipped" in row or set(row) >= FIELDS for row in found.values())


COUNTED = {
    "ref.call_inc": CALLS * SAMPLES,
    "ref.swap": CALLS * SAMPLES,
    "ref.int3": CALLS // 100 * SAMPLES,
    "ref.ctypes2": CALLS // 100 * SAMPLES,
    "fprobe.entry.native": CALLS * SAMPLES,
    "fprobe.both.native": CALLS * SAMPLES,
    "fprobe.both.native.regs": CALLS * SAMPLES,
    "fprobe.both.native.recursive": 67 * SAMPLES,
    "fprobe.entry.python": CALLS // 100 * SAMPLES,
    "fprobe.both.python": CALLS // 100 * SAMPLES,
    "fprobe.both.native.args": CALLS * SAMPLES,
    "fprobe.x3.native": 3 * CALLS * SAMPLES,
    "fprobe.miss": CALLS * SAMPLES,
    "fprobe.disabled": 0,
    "fprobe.both.native.maxactive1": CALLS * SAMPLES,
    "fprobe.both.native.maxactive1.threads2": 2 * CALLS * SAMPLES,
    "fprobe.tail": 2 * CALLS * SAMPLES,
    "fprobe.in_signal": CALLS * SAMPLES,
    "register.20threads": 20 * SAMPLES,
    "fprobe.both.record": CALLS * SAMPLES,
    "fprobe.first_hit": SAMPLES,
    "threads.2": 3 * CALLS * SAMPLES,
    "sweep.200": 201 * SAMPLES,
    "fprobe.both.native.among200": CALLS * SAMPLES,
}


@pytest.mark.parametrize("name", [name if name in FEW else in_stress(name) for name in COUNTED])
def test_hits_and_misses_are_the_calls_made(request: pytest.FixtureRequest, name: str) -> None:
    row = request.getfixturevalue("few" if name in FEW else "rows")[name]
    assert row["hits"] + row["missed"] == COUNTED[name]


@pytest.mark.stress
def test_a_measuring_process_leaves_no_perf_map() -> None:
    command = [sys.executable, "-m", "benchmarks", "--samples", "--calls=100", "--rounds=1", "fprobe.entry.native"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env={**os.environ, OPT_OUT: ""}) as process:
        assert process.wait(100) == 0
    assert not Path(f"/tmp/perf-{process.pid}.map").exists()


@pytest.mark.stress
def test_registration_rows_tell_both_ways(rows: dict[str, dict[str, float]]) -> None:
    for name in ("attach.4", "attach.200", "attach.200.entry", "attach.200.first"):
        assert rows[name]["register_ms"] > 0
        assert rows[name]["unregister_ms"] > 0


@pytest.mark.stress
def test_the_table_names_the_machine_the_rows_and_their_bars() -> None:
    done = small("--processes=2", "fprobe.both.native", "ref.swap")
    assert done.returncode == 0, done.stderr
    assert "llvmlite" in done.stdout.splitlines()[0]
    assert "half of ref.swap" in done.stdout
    assert "ref.call_inc" not in done.stdout


def test_a_row_that_does_not_exist_is_named() -> None:
    done = run("fprobe.nothing", "nothing.*", "ref.*")
    assert done.returncode == 2
    assert "no row 'fprobe.nothing', 'nothing.*'; there are: " in done.stderr


def test_rows_are_chosen_by_globs() -> None:
    rows = [row for group in all_rows(CALLS, FUNCTIONS) for row in group]
    chosen = [row.name for row in choose(rows, ["ref.*", "nop", "attach.?"])]
    assert chosen == [row.name for row in rows if row.name.startswith("ref.") or row.name in ("nop", "attach.4")]
    assert {"ref.swap", "nop", "attach.4"} <= set(chosen)


def test_a_count_that_is_no_number_of_calls_is_refused() -> None:
    done = run("--calls", "0")
    assert done.returncode == 2
    assert "--calls must be at least 1, not 0" in done.stderr


def test_hits_that_do_not_add_up_end_the_run() -> None:
    row = Row("row", "", lambda: Sample(1.0, 2.0, calls=10, hits=7, missed=2))
    with pytest.raises(CountError, match="7 hits and 2 misses in 10 calls"):
        measure([row], 1)


def test_rows_take_turns() -> None:
    order: list[str] = []

    def row(name: str, rounds: int) -> Row:
        return Row(name, "", lambda: (order.append(name), Sample(1.0, 2.0, 1, 1))[1], rounds)

    samples = measure([row("a", 9), row("b", 2)], 3)
    assert order == ["a", "b", "a", "b", "a"]
    assert [len(taken) for taken in samples.values()] == [3, 2]


def test_a_result_is_the_median_of_what_was_added_in_each_round() -> None:
    samples = [Sample(1.0, 4.0, 1, 1), Sample(2.0, 3.0, 1, 1, lost=3), Sample(5.0, 7.0, 1, 0, 1)]
    result = summarise("row", samples)
    assert (result.added_ns, result.min_ns, result.max_ns, result.baseline_ns) == (2.0, 1.0, 3.0, 2.0)
    assert (result.hits, result.missed, result.lost) == (2, 1, 3)


def test_a_bar_is_judged_by_what_was_measured_beside_it() -> None:
    def result(name: str, added: float) -> Result:
        return Result(name, added, 1.0, added, added, 1, 0, 0, {})

    swap, both = result("ref.swap", 10.0), result("fprobe.both.native", 5.0)
    relative, absolute = judge(both.name, {"ref.swap": swap, both.name: both})
    assert relative.startswith("holds: 5.00 <= 5.00") and absolute.startswith("holds: 5.00 <= 5.50")
    slower = result(both.name, 5.1)
    assert judge(both.name, {"ref.swap": swap, both.name: slower})[0].startswith("FAILS")
    assert judge(both.name, {both.name: both})[0].startswith("-")


@pytest.mark.stress
def test_a_failing_process_is_quoted() -> None:
    with pytest.raises(ChildError, match=r"no row 'fprobe\.nothing'"):
        gather(["fprobe.nothing"], 1)


def test_bars_are_about_rows_that_exist() -> None:
    names = {row.name for group in all_rows(CALLS, 50_000) for row in group}
    assert {bar.row for bar in BARS} <= names


@pytest.mark.stress
def test_a_row_of_a_package_that_is_not_installed_is_skipped_with_a_sentence(tmp_path, monkeypatch) -> None:
    (tmp_path / "frida.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = started("library.frida", "ref.swap")
    assert done.returncode == 0, done.stderr
    assert "library.frida: skipped: the package frida is not installed: pip install 'fprobe[bench]'" in done.stdout
    assert "half" not in done.stdout and "ref.swap" in done.stdout


@pytest.mark.stress
def test_a_run_of_skipped_rows_only_says_so_in_json(tmp_path, monkeypatch) -> None:
    (tmp_path / "frida.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = started("--json", "library.frida")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "name": "library.frida",
        "skipped": "the package frida is not installed: pip install 'fprobe[bench]'",
    }


@pytest.mark.parametrize(
    "name", ["PermissionDeniedError", in_stress("NotSupportedError"), in_stress("ProcessNotRespondingError")]
)
def test_a_frida_that_cannot_attach_is_skipped_with_its_reason(monkeypatch, name) -> None:
    """Frida itself stays out of the tests' process, which it can abort."""
    names = ("PermissionDeniedError", "NotSupportedError", "ProcessNotRespondingError")
    frida = types.SimpleNamespace(**{each: type(each, (Exception,), {}) for each in names})

    def refuse(_pid: int) -> None:
        raise getattr(frida, name)("unable to access process")

    frida.attach = refuse
    monkeypatch.setitem(sys.modules, "frida", frida)
    peers._no_frida.cache_clear()
    assert peers._no_frida() == "Frida cannot attach to a process here: unable to access process"
    peers._no_frida.cache_clear()


def test_uprobes_that_the_kernel_refuses_are_skipped_with_its_reason(monkeypatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "perf_event_open: Permission denied")

    peers._no_uprobes.cache_clear()
    monkeypatch.setattr(peers, "_uprobe", refuse)
    assert peers._no_uprobes() == "this kernel refuses uprobes: perf_event_open: Permission denied"
    peers._no_uprobes.cache_clear()


@pytest.mark.stress
@pytest.mark.parametrize(("name", "calls"), [("library.frida", CALLS), ("library.uprobe", CALLS // 10)])
def test_another_tracer_sees_the_calls_made(name: str, calls: int) -> None:
    done = small("--json", name)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    if "skipped" in row:
        pytest.skip(row["skipped"])
    assert row["hits"] == calls * PROCESSES
