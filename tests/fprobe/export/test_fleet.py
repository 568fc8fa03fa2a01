"""docs/fleet.md: its SQL and its Python code have the same rows, of the files of 100 processes."""

import math
import os
import re
import shutil
from pathlib import Path

import pytest
from later import later

import fprobe
import sandbox
from fprobe.export.columns.layout import Origin
from fprobe.export.columns.parquet import ParquetFile, Sink
from fprobe.export.columns.trace_dat import Known
from fprobe.export.recording import Recording
from fprobe.export.trace_dat_reader import Trace

parquet = later("pyarrow.parquet")

PAGE = Path(__file__).parents[3] / "docs/fleet.md"
PROCESSES = (10, pytest.param(100, marks=pytest.mark.stress))
"""Numbers of processes; the smaller has files of each day and host."""
_BLOCK = re.compile(r"^```(sql|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
(DUCKDB, SPARK, DASK), QUERIES = (
    [text for _, text in _BLOCK.findall(PAGE.read_text())][:3],
    re.findall(r"^## (.*?)\n.*?^```sql\n(.*?)^```\n\n```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL),
)
PROGRAM = """
define i64 @fl_leaf(i64 %x) noinline { %r = mul i64 %x, 3  ret i64 %r }
define i64 @fl_middle(i64 %x) noinline { %a = call i64 @fl_leaf(i64 %x)  %b = call i64 @fl_leaf(i64 %a)  ret i64 %b }
define i64 @fl_main(i64 %n) noinline {
entry:
  br label %more
more:
  %i = phi i64 [ 0, %entry ], [ %next, %more ]
  %a = call i64 @fl_middle(i64 %i)
  %next = add i64 %i, 1
  %done = icmp uge i64 %next, %n
  br i1 %done, label %end, label %more
end:
  ret i64 %i
}
"""


@pytest.fixture(scope="module", params=PROCESSES)
def fleet(request, tmp_path_factory):
    """A directory with the directory `fleet`: two days, five hosts, a file for each process with its share of a recording."""
    processes = request.param
    directory = tmp_path_factory.mktemp("data")
    module = sandbox.load(PROGRAM, name="flprog")
    with fprobe.event("f:in fl_*", "f:out fl_*%return") as events:
        recording = Recording(str(directory / "all.dat"), events.array)
        for number in range(processes):
            module["fl_main"](40 + number)
        recording.finish(events.disable)
    module.unload()
    trace = Trace(str(directory / "all.dat"))
    pages = list(trace.pages(trace.instances[0]))
    for number in range(processes):
        day, host = f"2026-11-{25 + number % 2}", f"host{number % 5}"
        place = directory / f"fleet/date={day}/host={host}"
        place.mkdir(parents=True, exist_ok=True)
        file = ParquetFile(Sink(str(place / f"{number}.parquet")), Known(trace), page_size=trace.page_size)
        first = number * len(pages) // processes
        for slot, page in pages[first : first + 6]:
            file.add(slot, page, pid=1000 + number)
        file.finish(processes=[Origin(1000 + number)])
    return directory


@pytest.fixture
def inside(fleet, monkeypatch):
    monkeypatch.chdir(fleet)


def _same(found, expected):
    assert len(found) == len(expected) > 0
    for row, other in zip(found, expected, strict=True):
        assert len(row) == len(other)
        for value, wanted in zip(row, other, strict=True):
            same = math.isclose(value, wanted, rel_tol=1e-9) if isinstance(wanted, (int, float)) else value == wanted
            assert same, (row, other)


def _of_duckdb(sql):
    duckdb = pytest.importorskip("duckdb")
    database = duckdb.connect()
    database.execute(DUCKDB)
    return [tuple(map(_plain, row)) for row in database.execute(sql).fetchall()]


def _plain(value):
    return float(value) if isinstance(value, (int, float)) or type(value).__name__ == "Decimal" else value


def test_the_page_has_four_queries():
    assert [title for title, _, _ in QUERIES] == [
        "Slowest functions", "P99 by host", "What got slower since yesterday", "Stacks under slow calls"
    ]  # fmt: skip


@pytest.mark.parametrize(("sql", "code"), [each[1:] for each in QUERIES], ids=[each[0] for each in QUERIES])
def test_dask_has_the_rows_of_duckdb(inside, sql, code):
    pytest.importorskip("dask.dataframe")
    import dask

    names: dict = {}
    with dask.config.set(scheduler="synchronous"):
        exec(DASK + code, names)  # the page's own code
    _same([tuple(map(_plain, row)) for row in names["rows"].itertuples(index=False)], _of_duckdb(sql))


@pytest.fixture(scope="module")
def spark():
    sql = pytest.importorskip("pyspark.sql", reason="Spark is the package pyspark, which is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", SPARK_LOCAL_HOSTNAME="localhost")  # nothing to ask a name server
    session = (
        sql.SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sql", [each[1] for each in QUERIES], ids=[each[0] for each in QUERIES])
def test_spark_has_the_rows_of_duckdb(inside, fleet, spark, sql):
    spark.sql(SPARK.replace("path 'fleet'", f"path '{fleet}/fleet'"))
    found = [tuple(map(_plain, row)) for row in spark.sql(sql).collect()]
    spark.catalog.dropTempView("fleet")
    _same(found, _of_duckdb(sql))
