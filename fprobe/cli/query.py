"""`fprobe query`: SQL on Parquet files that fprobe has written, by DuckDB."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fprobe.cli import candidates
from fprobe.cli.console import Console
from fprobe.cli.failure import Failure
from fprobe.cli.options import file_options, output_options

if TYPE_CHECKING:
    import duckdb

_EPILOG = """\b
Examples:
  fprobe query run.parquet 'SELECT function, count(*), sum(self_ns) FROM trace
      GROUP BY 1 ORDER BY 3 DESC LIMIT 10'
  fprobe query run.parquet \\
      "SELECT time_ns, reads.count FROM trace WHERE event = 'reads'"
  fprobe query 'fleet/*/*/*.parquet' --json \\
      'SELECT host, max(duration_ns) FROM trace GROUP BY host'

The files together are the table trace; a name may be a pattern of DuckDB's. `fprobe help recording` has the columns.
"""
_ABSENT = re.compile(
    r'Referenced column "(?P<name>.*?)" not found in FROM clause!(?: Candidate bindings: (?P<near>.*))?'
)
_NO_TABLE = re.compile(r"Table with name (?P<name>.*?) does not exist!")
_NOT_PARQUET = re.compile(r"(?:No magic bytes found at end of file|File) '(.*)'(?: too small|$)")
"""What DuckDB says."""
_LONGEST = 500
"""Characters of a message."""
_DAMAGED = "the file is damaged, or the query fails on its values"
_VERSION = "fprobe.schema_version"


@click.command("query", epilog=_EPILOG, short_help="Ask Parquet files by SQL.")
@click.argument("words", metavar="FILE... SQL", nargs=-1, shell_complete=candidates.files)
@output_options
@file_options("text", "ndjson", "csv")
def query_command(words: tuple[str, ...], console: Console) -> None:
    """Print the result of SQL about the table trace, which has the rows of each FILE. Needs the extra query.

    With --json: an object for each row.
    """
    if len(words) < 2 or not words[-1].strip(" \t\n;"):
        raise Failure("give files, and SQL after them, such as: fprobe query run.parquet 'SELECT count(*) FROM trace'")
    *files, sql = words
    try:
        import duckdb
    except ImportError as error:
        raise Failure(
            f"fprobe query needs the package duckdb, which cannot be imported ({error}): pip install 'fprobe[query]'"
        ) from None
    try:
        result = _database(files).sql(sql)
        names, rows = (result.columns, result.fetchall()) if result is not None else ([], [])
    except duckdb.Error as error:
        said = _sentence(str(error))
        raise Failure(said if _is_of_sql(error) else _with_file(said, files)) from None
    except (UnicodeDecodeError, RuntimeError):  # of a text, or a column's name, in a damaged file
        raise Failure(f"{', '.join(files)}: {_DAMAGED}: a text is not UTF-8") from None
    objects = [dict(zip(names, map(_plain, row), strict=True)) for row in rows] if console.json else []
    console.lines(_aligned(names, rows))
    console.document(objects, objects)


def _database(files: Sequence[str]) -> duckdb.DuckDBPyConnection:
    """A database with the table. Raises Failure, whatever is wrong with the files."""
    import duckdb

    try:
        return _opened(duckdb.connect(), files)
    except duckdb.Error as error:
        raise Failure(_with_file(_sentence(str(error)), files)) from None


def _opened(database: duckdb.DuckDBPyConnection, files: Sequence[str]) -> duckdb.DuckDBPyConnection:
    """The database with the table. Raises Failure for a file that fprobe has not written, or a newer one."""
    found: dict[str, dict[str, str]] = {}
    query = "SELECT file_name, decode(key), decode(value) FROM parquet_kv_metadata($files) WHERE decode(key) LIKE 'fprobe.%'"
    for name, key, value in database.execute(query, {"files": list(files)}).fetchall():
        found.setdefault(name, {})[key] = value
    matching = database.execute("SELECT DISTINCT file FROM glob($files) ORDER BY 1", {"files": list(files)})
    names = [name for (name,) in matching.fetchall()]
    for name in names:
        _check_version(name, found.get(name, {}).get(_VERSION))
    database.execute("CREATE TABLE fprobe_files (filename VARCHAR, host VARCHAR, boot_id VARCHAR)")
    of_files = [(name, found[name].get("fprobe.host"), found[name].get("fprobe.boot_id")) for name in names]
    database.executemany("INSERT INTO fprobe_files VALUES (?, ?, ?)", of_files)
    rows = f"read_parquet({_listed(names)}, union_by_name = true, hive_partitioning = true, filename = true)"
    there = database.sql(f"SELECT * FROM {rows} LIMIT 0").columns
    added = ", ".join(f"fprobe_files.{name}" for name in ("host", "boot_id") if name not in there)
    database.execute(f"CREATE VIEW trace AS SELECT r.*, {added} FROM {rows} AS r JOIN fprobe_files USING (filename)")
    return database


def _check_version(name: str, version: str | None) -> None:
    from fprobe.export.columns.layout import VERSION

    if version is None:
        raise Failure(f"{name}: fprobe has not written this file; give one of `fprobe record -o FILE.parquet`")
    if not version.isdigit() or int(version) > VERSION:
        raise Failure(
            f"{name}: its columns are of version {version}; this fprobe reads up to {VERSION}: install a newer one"
        )


def _listed(names: Sequence[str]) -> str:
    return "[" + ", ".join("'" + name.replace("'", "''") + "'" for name in names) + "]"


def _sentence(text: str) -> str:
    """What DuckDB says, on one line: without the kind of the error, the program's text, and the caret under it."""
    kind, colon, rest = text.partition("Error: ")
    said = " ".join((rest if colon and "\n" not in kind else text).partition("\n\nLINE")[0].split())
    if found := _ABSENT.match(said):
        near = [each.strip(' "') for each in (found["near"] or "").split(",") if each]
        hint = f"; did you mean {' or '.join(near[:3])}?" if near else ""
        return f"there is no column {found['name']!r}{hint}"
    if found := _NO_TABLE.match(said):
        return f"there is no table {found['name']!r}; the rows of the files are in the table trace"
    if found := _NOT_PARQUET.search(said):
        return (
            f"{found[1]}: this is no Parquet file, or its writer was killed before its end: give one of"
            " `fprobe record -o FILE.parquet`; `fprobe report FILE.dat -o FILE.parquet` makes one of a trace.dat"
        )
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."  # it may quote the bytes of a damaged text


def _is_of_sql(error: duckdb.Error) -> bool:
    """Whether it is about the query, not about what is in the files."""
    import duckdb

    of_sql = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException, duckdb.ConversionException)
    return isinstance(error, of_sql)


def _with_file(said: str, files: Sequence[str]) -> str:
    """The same, after the name of the files if it does not name one."""
    return said if any(name in said for name in files) else f"{', '.join(files)}: {_DAMAGED}: {said}"


def _plain(value: Any) -> Any:
    """A value that JSON has."""
    if isinstance(value, (dict, list)) or value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _aligned(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The lines of a table; numbers are on the right."""
    texts = [[_text(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[at]) for row in texts)]) for at, name in enumerate(names)]
    is_number = [any(isinstance(row[at], (int, float)) for row in rows) for at in range(len(names))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, is_number, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return [line(row) for row in ([*names], *texts)] if names else []


def _text(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value, default=str) if isinstance(value, (dict, list)) else str(value)
