"""`fprobe stat`."""

from __future__ import annotations

import csv
import json
import re

import pytest
from sampled import in_stress, sampled


@pytest.mark.stress
@pytest.mark.parametrize(
    ("width", "sort", "shown"), [(40, "max", "MAX HITS"), in_stress((60, "total", "TOTAL SELF P99 HITS"))]
)
def test_on_a_narrow_terminal_columns_give_way_and_names_are_cut(run, width, sort, shown):
    lines = run("stat", "vfs_*", "--sort", sort, COLUMNS=str(width)).out.splitlines()
    _, heading, *rows = lines[: lines.index(next(each for each in lines if each.startswith("demo_main")))]
    assert heading.split() == [*shown.split(), "FUNCTION"]
    assert max(map(len, (heading, *rows))) <= width and len(rows) == 11


def test_json_is_the_object_of_the_specification(run, programs):
    found = run("stat", "*", "--program", "prog.ll", "--call", "main", "4", "--json", cwd=programs).document
    assert list(found) == [
        "program",
        "call",
        "result",
        "interrupted",
        "matched",
        "attached",
        "skipped",
        "functions",
        "left_out",
    ]
    assert (found["program"], found["call"], found["result"]) == ("prog", "main(4)", 29)
    assert (found["matched"], found["attached"]) == (9, 6)
    assert found["skipped"] == [
        {"name": "quiet", "reason": "notrace"},
        {"name": "twice", "reason": "returns twice"},
        {"name": "nested", "reason": "has an argument in r10 or r11"},
    ]
    functions = {row["name"]: row for row in found["functions"]}
    times = [f"{name}_ns" for name in ("total", "self", "average", "min", "p50", "p90", "p99", "max")]
    assert all(
        list(row) == ["name", "symbol", "module", "hits", "returns", "missed", *times] for row in functions.values()
    )
    assert {name: row["hits"] for name, row in functions.items()} == {
        "main": 1, "func1": 1, "func2": 1, "fact": 4, "half": 0, "text": 0,
    }  # fmt: skip
    assert functions["main"]["total_ns"] >= functions["func2"]["total_ns"] >= functions["func1"]["total_ns"] > 0


def test_the_table(run):
    found = run("stat", "vfs_*").out
    assert re.search(r"^ +TOTAL +SELF +AVERAGE +MIN +P50 +P90 +P99 +MAX +HITS +FUNCTION$", found, re.MULTILINE)
    assert re.search(r"^( +[\d.]+ [num]+s){8} +10  vfs_write$", found, re.MULTILINE)
    assert "11 functions matched: 11 attached, 0 skipped" in found
    assert "106 hits, 0 misses" in found


def test_order(run):
    rows = re.findall(r"[num]s +([\d,]+)  (\w+)$", run("stat", "vfs_*", "--sort", "hits").out, re.MULTILINE)
    hits = [int(number) for number, _ in rows]
    assert len(hits) == 11 and hits == sorted(hits, reverse=True)
    rows = re.findall(r"[num]s +[\d,]+  (\w+)$", run("stat", "vfs_*", "--sort", "name").out, re.MULTILINE)
    assert len(rows) == 11
    assert rows == sorted(rows)


def test_tracing_does_not_change_the_result(run):
    traced = run("stat", "*", "--json").document
    untouched = run("stat", "vfs_statfs", "--json").document
    assert traced["result"] == untouched["result"]
    assert sum(row["hits"] for row in traced["functions"]) > 4000


def test_deep_recursion_is_not_missed(run, programs):
    found = run("stat", "fact", "--program", "prog.ll", "--call", "fact", "20000", "--json", cwd=programs).document
    [row] = found["functions"]
    assert (row["name"], row["hits"], row["missed"]) == ("fact", 20000, 0)


def test_several_patterns(run):
    found = run("stat", "vfs_read", "kfree", "--json").document
    assert {row["name"] for row in found["functions"]} == {"vfs_read", "kfree"}
    found = run("stat", "vfs_r*", "vfs_o*", "!vfs_read", "--json").document
    assert {row["name"] for row in found["functions"]} == {"vfs_open"}


@pytest.mark.parametrize("verb", ["trace", "stat"])
def test_what_the_program_prints_is_kept_out_of_the_json(run, programs, verb):
    found = run(verb, "hello", "--program", "hello.ll", "--json", cwd=programs)
    assert found.err == "hello, world\n"
    assert json.loads(found.out.splitlines()[-1] if verb == "trace" else found.out)
    assert "hello, world\n" in run(verb, "hello", "--program", "hello.ll", cwd=programs).out


def test_shortest_and_longest_calls(run, programs):
    found = run("stat", "fact", "main", "--program", programs / "prog.ll", "--call", "main", "20", "--json").document
    rows = {row["name"]: row for row in found["functions"]}
    assert 0 <= rows["fact"]["min_ns"] <= rows["fact"]["max_ns"] <= rows["main"]["max_ns"]
    assert rows["main"]["min_ns"] == rows["main"]["max_ns"] == rows["main"]["total_ns"]


def test_histograms_and_percentiles(run, programs):
    words = ["stat", "fact", "--program", programs / "prog.ll", "--call", "main", "50", "--hist"]
    row = run(*words, "--json").document["functions"][0]
    assert sum(bucket["count"] for bucket in row["histogram"]) == row["hits"] == 50
    assert row["min_ns"] <= row["p50_ns"] <= row["p90_ns"] <= row["p99_ns"] <= row["max_ns"]
    text = run(*words).out
    assert re.search(r"^fact: 50 calls, .*: p50 .*, p90 .*, p99 .*$", text, re.MULTILINE) and "|####" in text


def test_callers_are_told_apart(run, programs):
    words = ["stat", "fact", "text", "--program", programs / "prog.ll", "--call", "main", "4", "--by", "caller"]
    rows = run(*words, "--json").document["functions"]
    called = {(row["name"], re.sub(r"\+0x\w+", "", row["caller"])): row["hits"] for row in rows if row["hits"]}
    assert called == {("fact", "main [prog]"): 1, ("fact", "fact [prog]"): 3}
    assert [(row["name"], row["caller"]) for row in rows if not row["hits"]] == [("text", None)]
    assert all(0 < row["min_ns"] <= row["max_ns"] <= row["total_ns"] for row in rows if row["hits"])
    text = run(*words).out
    assert "HITS  FUNCTION BY CALLER" in text and "1 function never called" in text
    assert re.search(r" 3  fact <- fact\+0x\w+ \[prog\]$", text, re.MULTILINE)


def test_threads_are_told_apart(run):
    (row,) = run("stat", "vfs_write", "--by", "thread", "--json").document["functions"]
    assert row["hits"] == 10 and isinstance(row["tid"], int) and row["tid"] > 0


def test_histograms_are_of_functions(run):
    refused = run("stat", "vfs_write", "--by", "thread", "--hist", code=2)
    assert "give --hist or --by thread" in refused.err


COLUMNS = ["total", "self", "average", "min", "p50", "p90", "p99", "max", "cpu"]


@pytest.mark.parametrize("column", sampled([*COLUMNS, "hits"], 4))
def test_rows_are_sorted_by_any_column(run, column):
    rows = run("stat", "vfs_*", "--cpu", "--sort", column, "--json").document["functions"]
    values = [row["hits" if column == "hits" else f"{column}_ns"] for row in rows]
    assert len(values) == 11 and values == sorted(values, reverse=True)


def test_the_first_rows_and_those_with_enough_hits(run):
    words = ["stat", "vfs_*", "--sort", "hits", "--min-hits", "10", "--top", "3"]
    document = run(*words, "--json").document
    assert document["functions"][0]["name"] == "vfs_llseek" and len(document["functions"]) == 3
    assert document["left_out"] == 8
    text = run(*words).out
    assert "# 8 rows are not shown: fewer than 10 hits (--min-hits) or after the first 3 (--top)\n" in text
    assert len(re.findall(r" vfs_\w+$", text, re.MULTILINE)) == 3


def test_self_and_cpu_time_are_columns(run):
    text = run("stat", "vfs_fsync*", "--cpu").out
    assert re.search(r"^ +TOTAL +SELF +AVERAGE .* MAX +CPU +HITS +FUNCTION$", text, re.MULTILINE)
    outer, inner = run("stat", "vfs_fsync*", "--json", "--sort", "total").document["functions"]
    assert (outer["name"], inner["self_ns"]) == ("vfs_fsync", inner["total_ns"])
    assert outer["self_ns"] == pytest.approx(outer["total_ns"] - inner["total_ns"], abs=2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sort", "cpu"], "--sort cpu orders by CPU time, which is not measured: give --cpu, too"),
        (["--sort", "avg"], "'avg' is not one of"),
        (["--top", "-1"], "-1 is not in the range x>=1"),
        (["--top", "0"], "0 is not in the range x>=1"),
        (["--min-hits", "-1"], "-1 is not in the range x>=0"),
    ],
)
def test_columns_and_numbers_that_are_not_there_are_refused(run, words, message):
    assert message in run("stat", "vfs_*", *words, code=2).err


def test_stat_trace_and_hist_write_the_format_of_the_suffix(run, tmp_path):
    shown = run("stat", "vfs_*", "--format", "csv").out
    run("stat", "vfs_*", "-o", tmp_path / "stat.csv")
    rows = [list(csv.DictReader(text.splitlines())) for text in (shown, (tmp_path / "stat.csv").read_text())]
    objects = run("stat", "vfs_*", "--format", "ndjson").objects
    expected = {each["name"]: str(each["hits"]) for each in objects}
    assert [{row["name"]: row["hits"] for row in found} for found in rows] == [expected] * 2 and len(objects) == 11
    assert run("trace", "vfs_read", "-o", tmp_path / "calls.ndjson").out == ""
    lines = [json.loads(line) for line in (tmp_path / "calls.ndjson").read_text().splitlines()]
    assert [each["type"] for each in lines].count("exit") == int(expected["vfs_read"])
    run("hist", "-e", "p:reads vfs_read count=%dx:u64", "keys=count", "-o", tmp_path / "hist.csv")
    (first, *_) = csv.DictReader((tmp_path / "hist.csv").open(newline=""))
    assert first["event"] == "reads" and first["key"].startswith("count: ") and int(first["hitcount"]) > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stat", "vfs_read", "--json", "--format", "csv"], "--json is --format json, and the format is csv"),
        (["trace", "vfs_read", "-o", "x.csv"], "-o x.csv means the format csv, which is not written here"),
        (["stat", "vfs_read", "-o", "/nowhere/x.csv"], "/nowhere/x.csv: No such file or directory"),
    ],
)
def test_formats_that_cannot_be_written_are_a_sentence(run, words, message):
    done = run(*words, code=2)
    assert message in done.err and done.err.count("\n") == 1


def test_calls_by_argument_that_pass_a_filter(run):
    found = run("stat", "vfs_*", "--where", "count > 400", "--by", "arg(count)", "--json").document
    assert {(row["name"], row.get("count")): row["hits"] for row in found["functions"]} == {
        ("vfs_read", 512): 10, ("vfs_write", 403): 1, ("vfs_write", 472): 1, ("vfs_write", 663): 1, ("vfs_write", 695): 1,
    }  # fmt: skip
    assert {"name": "vfs_unlink", "reason": "it has no such argument; the parameters are dir, dentry"} in found[
        "skipped"
    ]
    assert "2 functions without a call that passed 'count == 9'" in run("stat", "vfs_*", "--where", "count == 9").out
    failing = run("stat", "vfs_*", "--where", "nothing == 1", code=2)
    assert "cannot be selected: it has no such argument; the parameters are" in failing.err
