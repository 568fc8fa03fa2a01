"""CSV of objects and speedscope of stacks, read by Python's csv and json."""

import csv
import io
import json

from fprobe.report.rows import csv_lines
from fprobe.report.speedscope import speedscope


def read(objects):
    text = "".join(f"{line}\n" for line in csv_lines(lambda: objects))
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def test_columns_are_the_keys_of_all_objects_and_fields_are_among_them():
    rows = read(
        [
            {"event": "in", "cpu": 1, "fields": {"n": 3, "cpu": 7}},
            {"event": "out", "lost": None, "fields": {"v": [1, 2], "text": "a,\"b\"\nc"}},
            {"event": "none", "args": {"x": 1}},
        ]
    )  # fmt: skip
    assert [*rows[0]] == ["event", "cpu", "lost", "args", "n", "field_cpu", "v", "text"]
    assert rows[0] == dict.fromkeys(rows[0], "") | {"event": "in", "cpu": "1", "n": "3", "field_cpu": "7"}
    assert json.loads(rows[1]["v"]) == [1, 2] and rows[1]["text"] == 'a,"b"\nc'
    assert json.loads(rows[2]["args"]) == {"x": 1}


def test_a_text_with_the_end_of_a_line_is_one_cell():
    texts = ["a\nb", "a\rb", "\n", "a\r\nb", "plain"]
    assert [row["text"] for row in read([{"text": text} for text in texts])] == texts


def test_nothing_is_a_table_without_columns():
    assert [*csv_lines(list)] == [""]


def test_frames_have_their_file_and_line_apart():
    stacks = [(("outer (app.py:12)", "deflate [libz]"), 5), (("outer (app.py:12)", "main"), 2)]
    found = json.loads(speedscope("app", {"1 app": stacks}))
    assert found["shared"]["frames"] == [
        {"name": "outer", "file": "app.py", "line": 12}, {"name": "deflate", "file": "libz"}, {"name": "main"}
    ]  # fmt: skip
    assert found["profiles"][0]["samples"] == [[0, 1], [0, 2]] and found["profiles"][0]["endValue"] == 7
