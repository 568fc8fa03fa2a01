"""fprobe query: SQL on Parquet files, and what cannot be asked."""

from pathlib import Path

import pytest
from later import later

from fprobe.cli.query import _sentence

pyarrow, parquet = later("pyarrow"), later("pyarrow.parquet")
later("duckdb")

VERSION_1 = Path(__file__).parents[1] / "export/version_1.parquet"


def test_query_prints_a_table_and_objects(run):
    """A file that is given twice is read once."""
    sql = "SELECT function, count(*) AS calls, max(host) AS host FROM trace WHERE kind = 'call' GROUP BY 1"
    lines = run("query", VERSION_1, sql).out.splitlines()
    assert lines[0].split() == ["function", "calls", "host"] and lines[1].split() == ["fact", "3", "here"]
    assert run("query", VERSION_1, VERSION_1, sql, "--json").objects == [
        {"function": "fact", "calls": 3, "host": "here"}
    ]


def test_columns_that_are_null_are_empty_in_csv(run):
    (head, *rows) = run("query", VERSION_1, "SELECT kind, fields FROM trace", "--format", "csv").out.splitlines()
    assert head == "kind,fields" and "call," in rows


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "SELECT functon FROM trace",
            "there is no column 'functon'; did you mean function",
        ),
        ("SELEC", 'syntax error at or near "SELEC"'),
        ("SELECT * FROM traces", "there is no table 'traces'; the rows of the files are in the table trace"),
    ],
)
def test_wrong_sql_is_one_sentence(run, sql, message):
    done = run("query", VERSION_1, sql, code=2)
    assert message in done.err and done.err.count("\n") == 1


def test_a_damaged_file_is_named(run, tmp_path):
    whole, sql = VERSION_1.read_bytes(), "SELECT * FROM trace"
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    damaged = {
        "footer": whole[:footer] + b"\xff" + whole[footer + 1 :],
        "page": whole[:4] + bytes(60) + whole[64:],
        "column": whole[:footer] + whole[footer:].replace(b"function", b"funct\xff\xff\xff", 1),
        "metadata": whole[:footer] + whole[footer:].replace(b"fprobe.host", b"fprobe.\xffost"),
        "host": whole.replace(b"fprobe.host", b"fprobe.hoax"),
    }
    for name, data in damaged.items():
        (path := tmp_path / f"{name}.parquet").write_bytes(data)
        done = run("query", path, sql, code=0 if name == "host" else 2)
        assert name == "host" or (f"{path}: the file is damaged" in done.err and done.err.count("\n") == 1)


def test_query_refuses_what_it_cannot_read(run, tmp_path):
    newer, other = tmp_path / "newer.parquet", tmp_path / "other.parquet"
    table = pyarrow.table({"kind": ["call"]})
    parquet.write_table(table, other)
    parquet.write_table(table.replace_schema_metadata({"fprobe.schema_version": "2"}), newer)
    sql = "SELECT 1 FROM trace"
    assert "its columns are of version 2; this fprobe reads up to 1" in run("query", newer, sql, code=2).err
    assert "fprobe has not written this file" in run("query", other, sql, code=2).err
    assert "No files found" in run("query", tmp_path / "no.parquet", sql, code=2).err
    (tmp_path / "text.parquet").write_text("no columns")
    assert (
        "text.parquet: this is no Parquet file, or its writer was killed"
        in run("query", tmp_path / "text.parquet", sql, code=2).err
    )


def test_no_sql_is_no_answer(run):
    assert "give files, and SQL after them" in run("query", VERSION_1, " ; ", code=2).err


def test_a_message_that_quotes_a_damaged_text_is_short():
    assert _sentence(f"Invalid Error: value {10_000 * 'x'}").endswith("xxx...")
    assert len(_sentence(10_000 * "x")) < 600
