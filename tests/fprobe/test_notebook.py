"""`%%fprobe` above a cell of IPython: a table and a flame graph of its calls."""

import html
import json
import re
import tempfile
from pathlib import Path

import pytest
from isolation import isolated

pytest.importorskip("IPython", reason="IPython is not installed")
CELL = """
import zlib
def packed(): return zlib.compress(b"x" * 1000)
for _ in range(20): packed()
print("the cell")
"""


def _shell():
    from IPython.core.interactiveshell import InteractiveShell

    import zlib  # noqa: F401  # which loads libz  # isort: skip

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "fprobe")
    return shell


def _captured(shell, line, cell=CELL):
    from IPython.utils.capture import capture_output

    with capture_output() as found:
        shell.run_cell(f"%%fprobe {line}\n{cell}")
    return found


@isolated
def test_a_cell_has_a_table_and_a_flame_graph():
    with tempfile.TemporaryDirectory() as directory:
        written = Path(directory, "cell.html")
        found = _captured(_shell(), f"libz:deflate 'libz:deflate*' -o {written}")
        text = written.read_text()
    assert found.stdout.startswith("the cell\n")
    data = found.outputs[0].data
    heads, *rows = data["text/plain"].splitlines()
    assert "SELF" in heads and "P99" in heads
    hits = {row.split()[-2]: int(row.split()[-3]) for row in rows}
    assert hits["deflate"] == hits["deflateInit2_"] == hits["deflateResetKeep"] == 20
    page = html.unescape(re.search('<iframe srcdoc="(.*?)"', data["text/html"], re.DOTALL)[1])
    assert page == text
    graph = json.loads(re.search("application/json.>(.*)</script>", page)[1])
    assert graph["probed"] == ["libz:deflate", "libz:deflate*"]
    stacks = [[graph["names"][frame] for frame in frames] for _, _, frames in graph["stacks"]]
    assert all(stack[0].startswith("<module>") and stack[1].startswith("packed") for stack in stacks)
    assert sum(calls for _, calls, frames in graph["stacks"] if graph["names"][frames[-1]] == "deflate [libz]") == 20


@isolated
def test_times_are_without_what_taking_stacks_costs():
    """A call with a call inside, which the handlers of stacks make some ten times as long."""
    shell = _shell()
    cell = CELL.replace("range(20)", "range(300)")
    _captured(shell, "libz:deflate*", cell)
    taken = {}
    for options in ("", "--no-stacks "):
        text = _captured(shell, f"{options}libz:deflateInit2_ libz:deflateReset*", cell).outputs[0].data["text/plain"]
        heads, *rows = (line.split() for line in text.splitlines())
        row = next(row for row in rows if row[-2] == "deflateInit2_")
        assert row[-3] == "300" and "P99" in heads
        position = 2 * heads.index("MIN")
        taken[options] = float(row[position]) * {"ns": 1, "us": 1e3, "ms": 1e6}[row[position + 1]]
    assert taken[""] < 5 * taken["--no-stacks "]


@isolated
def test_what_cannot_be_probed_is_a_sentence_and_a_cell_that_fails_is_reported():
    shell = _shell()
    assert "no module, library or other image 'nolib' is loaded" in _captured(shell, "nolib:x").stderr
    assert "no pattern is given; give %%fprobe [--no-stacks]" in _captured(shell, "").stderr
    assert "option --none not recognized" in _captured(shell, "--none libz:deflate").stderr
    failing = _captured(shell, "--no-stacks libz:deflate", CELL + "unknown_name\n")
    assert "NameError" in failing.stdout + failing.stderr and "deflate [libz]" in failing.outputs[-1].data["text/plain"]
    assert "calls no function of libz:deflate" in _captured(shell, "libz:deflate", "1").outputs[-1].data["text/plain"]
