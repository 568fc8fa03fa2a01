"""fprobe hist, graph, profile, events: what ftrace aggregates and traces by itself."""

import json

import pytest

from fprobe.cli.hist import bars, entries_of


def test_hist_shows_bars(run, programs):
    done = run(
        "hist", "-e", "p:facts fact n=%di:u64", "keys=n", "sort=n", "--program", str(programs / "prog.ll"),
        "--call", "main", "3",
    )  # fmt: skip
    lines = [line for line in done.out.splitlines() if line.startswith("{")]
    assert [line.split("}")[0].split()[-1] for line in lines] == ["1", "2", "3"]
    assert all(line.endswith("|" + "#" * 40) for line in lines)
    assert "Hits: 3 Entries: 3 Dropped: 0" in done.out and done.out.endswith("3 hits, 0 misses\n")


def test_hist_with_a_condition_as_json(run, programs):
    document = run(
        "hist", "-e", "p:facts fact n=%di:u64", "keys=n", "vals=n", "--filter", "n > 1", "--json",
        "--program", str(programs / "prog.ll"), "--call", "main", "3",
    ).document  # fmt: skip
    assert {entry["key"]: entry["n"] for entry in document["histograms"]["facts"]} == {"n: 2": 2, "n: 3": 3}


def test_bars_are_shares_of_the_largest_and_stacks_stay_whole():
    text = "# event histogram\n{ a:  1 } hitcount:   10\n{ stacktrace:\n         f+0x1\n} hitcount:   40\n\nTotals:\n"
    entries = list(entries_of(text))
    assert [entry.hits for entry in entries] == [10, 40]
    shown = list(bars(entries, None))
    assert shown[0].endswith("|" + "#" * 10) and shown[-1].endswith("|" + "#" * 40)
    assert shown[1:3] == ["{ stacktrace:", "         f+0x1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["keys=zz"], "Couldn't find field\n  hist:keys=zz\n            ^"),
        (["vals=n"], "has no keys"),
        (["keys=n", "--filter", "m > 1"], "Field not found"),
    ],
)
def test_bad_histograms_are_refused(run, words, message):
    assert message in run("hist", "-e", "p:reads vfs_read n=%dx", *words, code=2).err


def test_events_lists_fields(run):
    done = run("events", "-e", "p:reads vfs_read a=+0(%di):u8[3] who=$comm")
    assert "kprobes:reads  unsigned long __probe_ip, u8 a[3], __data_loc char who[1]" in done.out
    found = {f"{event['group']}:{event['name']}" for event in json.loads(run("events", "--json").out)}
    assert {"ftrace:function", "ftrace:print"} <= found


@pytest.mark.parametrize(
    ("parameter", "said"), [("srot=n", "did you mean sort?"), ("bogus=1", "they are keys="), ("sort=n:kyes=n", "keys?")]
)
def test_a_parameter_that_is_none_is_refused(run, programs, parameter, said):
    """In the kernel's language it is a variable, which nothing used."""
    words = ("hist", "-e", "p:at fact n=%di:u64", "keys=n", "--program", programs / "prog.ll", "--call", "main", "3")
    assert said in run(*words[:4], parameter, *words[4:], code=2).err
    assert "{ n:" in run(*words[:4], "x=n", "vals=$x", *words[4:]).out
    assert "none passed 'n > 99'" in run(*words[:4], "--filter", "n > 99", *words[4:]).out
