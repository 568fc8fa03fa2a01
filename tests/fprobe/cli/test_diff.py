"""`fprobe diff`: reports and recordings of every kind, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fprobe.export.runs import runs_of


def row(name, hits, total, own=None):
    made = {"name": name, "symbol": name, "module": "libz", "hits": hits, "returns": hits, "total_ns": total}
    return made if own is None else {**made, "self_ns": own}


@pytest.fixture
def write(tmp_path):
    def written(name, *rows, stacks=()):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        document = {"processes": [{"functions": [each], "stacks": list(stacks)} for each in rows]}
        path.write_text(json.dumps(document))
        return str(path)

    return written


def test_two_reports_by_function(run, write):
    a = write("a.json", row("f", 2, 100, 50), row("f", 1, 100, 50), row("gone", 1, 30, 30))
    b = write("b.json", row("f", 4, 300, 300), row("new", 1, 7, 7))
    document = run("diff", a, b, "--json").document
    assert (document["value"], document["before"], document["after"], document["left_out"]) == ("self", [a], [b], 0)
    found = {
        each["name"]: (each["before"], each["after"], each["relative"], each["only_in"]) for each in document["rows"]
    }
    assert found == {
        "f [libz]": (100, 300, 2.0, None),
        "gone [libz]": (30, 0, -1.0, "A"),
        "new [libz]": (0, 7, None, "B"),
    }
    average = run("diff", a, b, "--value", "average", "--json", "--top", "1").document
    assert [(each["name"], each["change"]) for each in average["rows"]] == [("gone [libz]", -30)] and average[
        "left_out"
    ] == 2
    text = run("diff", a, b, "--value", "hits", "--sort", "name").out.splitlines()
    assert text[0].split() == ["A", "B", "B", "-", "A", "CHANGE", "FUNCTION,", "hits"]
    assert text[1].split() == ["3", "4", "+1", "+33.3", "%", "f", "[libz]"]
    assert text[2].split() == ["1", "0", "-1", "only", "in", "A", "gone", "[libz]"]


def test_directories_are_several_runs(run, write, tmp_path):
    for number in range(3):
        write(f"a/{number}.json", row("f", 1, 100 + number))
        write(f"b/{number}.json", row("f", 1, 200 + number))
    document = run("diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json").document
    assert document["value"] == "total" and len(document["before"]) == 3
    assert [(each["before"], each["after"], each["p"]) for each in document["rows"]] == [(101, 201, 0.1)]
    assert " P  FUNCTION, total" in run("diff", str(tmp_path / "a"), str(tmp_path / "b")).out


def test_stacks_and_their_graph(run, write, tmp_path):
    a = write("a.json", row("f", 1, 1), stacks=[{"frames": ["main", "f [libz]"], "hits": 1, "self_ns": 40}])
    b, graph = tmp_path / "b.folded", tmp_path / "d.svg"
    b.write_text("main;f [libz] 10\nmain;g [libz] 5\n")
    rows = run("diff", "--by", "stack", a, str(b), "-o", str(graph), "--json").document["rows"]
    assert [(each["name"], each["change"]) for each in rows] == [("main;f [libz]", -30), ("main;g [libz]", 5)]
    assert "f [libz]" in {each.text for each in ElementTree.parse(graph).iter("{http://www.w3.org/2000/svg}text")}


def test_a_recording_and_a_report_of_stat(run, programs, tmp_path):
    words = ["--program", str(programs / "prog.ll"), "--call", "main"]
    recording, report = tmp_path / "t.dat", tmp_path / "stat.json"
    run("record", "-e", "f:a fact", "-e", "f:b fact%return", "-o", str(recording), *words, "3")
    report.write_text(run("stat", "fact", "--json", *words, "7").out)
    (found,) = run("diff", str(recording), str(report), "--value", "hits", "--json").document["rows"]
    assert (found["name"], found["before"], found["after"]) == ("fact", 3, 7)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.json", "a.json"], "nothing.json: No such file or directory"),
        (["a.json", "text"], "text: this is not the JSON of fprobe run or fprobe stat, folded stacks, or a trace.dat"),
        (["a.json", "other.json"], "in this JSON, there is no 'functions'"),
        (["a.json", "cut.json"], "cut.json: the JSON of fprobe run or fprobe stat"),
        (["a.json", "empty"], "empty: there is no file in this directory"),
        (["a.json", "a.json", "--value", "self"], "a.json has no self; give another --value"),
        (["a.json", "a.json", "--value", "median"], "'median' is not one of"),
        (["a.json", "a.json", "--by", "stack"], "a.json has no stacks"),
        (
            ["a.json", "a.json", "--by", "stack", "--value", "hits"],
            "stacks have the time of their innermost functions, not hits",
        ),
        (["a.json", "a.json", "-o", "d.html"], "-o d.html means the format flame, which is not written here"),
        (["a.json", "a.json", "--top", "-1"], "-1 is not in the range x>=1"),
    ],
)
def test_reports_of_another_kind_are_refused(run, write, tmp_path, words, message):
    write("a.json", row("f", 1, 1))
    (tmp_path / "text").write_text("no report\n")
    (tmp_path / "other.json").write_text('{"traceEvents": []}')
    (tmp_path / "cut.json").write_text('{"processes": [')
    (tmp_path / "empty").mkdir()
    assert message in run("diff", *words, cwd=tmp_path, code=2).err


ODD = [None, True, -1, 1e400, float("nan"), 10**30, "", "x", [], {}, [[]], "\ud800"]
PLACES = [
    (), ("processes",), ("processes", 0), ("processes", 0, "functions"), ("processes", 0, "functions", 0),
    *(("processes", 0, "functions", 0, key) for key in ("name", "hits", "returns", "total_ns", "self_ns", "module")),
    ("processes", 0, "stacks"), ("processes", 0, "stacks", 0), ("processes", 0, "stacks", 0, "frames"),
    ("processes", 0, "stacks", 0, "frames", 0), ("processes", 0, "stacks", 0, "self_ns"),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_json_with_odd_values_is_compared_or_explained(write, tmp_path, place):
    text = Path(write("a.json", row("f", 2, 100, 50), stacks=[{"frames": ["m", "f"], "self_ns": 5}])).read_text()
    for odd in ODD:
        document = at = {"document": json.loads(text)}
        for key in ("document", *place)[:-1]:
            at = at[key]
        at[("document", *place)[-1]] = odd
        (tmp_path / "odd.json").write_text(json.dumps(document["document"]))
        try:
            (made,) = runs_of(str(tmp_path / "odd.json"))
        except ValueError as error:
            assert str(error).startswith(f"{tmp_path}/odd.json: ") and len(str(error)) > len(str(tmp_path)) + 30
        else:
            assert all(isinstance(name, str) and name.encode("utf-8") for name in made.functions)
            numbers = [each for found in made.functions.values() for each in found if each is not None]
            assert all(isinstance(each, (int, float)) and 0 <= each < 1 << 64 for each in numbers)
            assert all(isinstance(frame, str) for frames in made.stacks for frame in frames)


@pytest.mark.parametrize("text", ['{"a":' * 100_000, '{"processes": 5}', "main;work " + "9" * 400])
def test_a_damaged_report_is_named_in_a_sentence(run, tmp_path, text):
    path = tmp_path / "damaged"
    path.write_text(text)
    found = run("diff", str(path), str(path), code=2)
    assert found.err.startswith(f"fprobe: {path}: ") and len(found.err.splitlines()) == 1


def test_names_with_control_characters_make_a_graph_that_can_be_read(run, write, tmp_path):
    folded, graph = tmp_path / "a.folded", tmp_path / "d.svg"
    folded.write_bytes(b"main;\x1b[31mred;\x80\x01 7\n")
    report = write("a.json", row("\x1b[31mred", 2, 100, 50), stacks=[{"frames": ["m\n", "\x1b[31mred"], "self_ns": 5}])
    for one, other in ((str(folded), report), (report, report)):
        assert "\x1b" not in run("diff", "--by", "stack", one, other, "-o", str(graph)).out
        assert r"\x1b[31mred" in "".join(ElementTree.parse(graph).getroot().itertext())


@pytest.mark.parametrize("words", ["diff /dev/zero /dev/zero", "report /dev/zero"])
def test_a_file_without_end_is_refused(run, words):
    assert re.match(r"fprobe: /dev/zero: .*not .*a trace\.dat", run(*words.split(), code=2).err)
