"""`fprobe run --stacks`: who calls, as text, folded, and as a flame graph in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
import zlib
from itertools import pairwise

import pytest

from tests.built_library import build_library, needs_compilers

WRAPPER = ["zlib_compress"] if hasattr(zlib, "__file__") else []
"""The native caller of deflate; where zlib is built into the interpreter, as Debian's, it is a frame of that, and left out."""

CALLERS = """
import gzip, io, os, zlib
def inner(n): return zlib.compress(b"x" * n)
def outer():
    for _ in range(50): inner(1000)
def other():
    with gzip.GzipFile(fileobj=io.BytesIO(), mode="wb") as file: file.write(b"abc" * 1000)
outer(); other()
os.kill(os.getpid(), 9)
"""


def test_native_and_python_frames_are_one_stack(launch):
    done = launch("--stacks", "libz:deflate", source=CALLERS, as_json=False)
    assert done.returncode == -9
    lines = [line.split("] ")[0].split(" (")[0].strip() for line in done.err.splitlines()[1:]]
    start = next(at for at, line in enumerate(lines) if "50 calls  deflate [libz]" in line)
    frames = [*WRAPPER, "inner", "outer", "<module>"]
    assert [line.partition(" [")[0] for line in lines[start + 1 : start + 1 + len(frames)]] == [
        f"<- {f}" for f in frames
    ]
    assert sum("calls  deflate [libz]" in line for line in lines) == 3


@pytest.mark.skipif(not hasattr(sys, "activate_stack_trampoline"), reason="Python has perf trampolines from 3.12 on")
@pytest.mark.parametrize("option", ["perf", pytest.param("perf_jit", marks=pytest.mark.stress)])
def test_stacks_are_the_same_under_perf(launch, tmp_path, option):
    """Hazard: the handler, too, runs in a trampoline, at which the C library's unwinder ends."""
    (tmp_path / "callers.py").write_text(CALLERS)
    (process,) = launch("--stacks", "libz:deflate", "--", "-X", option, tmp_path / "callers.py").report["processes"]
    (most,) = [stack for stack in process["stacks"] if stack["hits"] == 50]
    names = [frame.partition(" ")[0] for frame in most["frames"]]
    assert names == ["<module>", "outer", "inner", *WRAPPER, "deflate"]


@pytest.mark.stress
def test_stacks_as_json(launch):
    (process,) = launch("--stacks", "libz:deflate", source=CALLERS).report["processes"]
    (most,) = [stack for stack in process["stacks"] if stack["hits"] == 50]
    assert [frame.partition(" ")[0] for frame in most["frames"]] == [
        "<module>", "outer", "inner", *WRAPPER, "deflate",
    ]  # fmt: skip
    assert len(process["stacks"]) == 3 and all(stack["self_ns"] > 0 for stack in process["stacks"])


@pytest.mark.stress
def test_objects_are_made_by_no_frame_of_the_interpreters_own(launch):
    """From 3.13 on, it has one around __init__ once the call has become a fast one."""
    source = """
    import zlib
    class Made:
        def __init__(self): zlib.compress(b"x")
    def make():
        for _ in range(100): Made()
    make()
    """
    (process,) = launch("--stacks", "libz:deflate", source=source).report["processes"]
    (stack,) = process["stacks"]
    names = [frame.partition(" ")[0].rpartition(".")[2] for frame in stack["frames"]]
    assert names == ["<module>", "make", "__init__", *WRAPPER, "deflate"] and stack["hits"] == 100


@pytest.mark.stress
def test_folded_stacks_have_the_time_without_what_is_inside(launch, tmp_path):
    path = tmp_path / "folded"
    launch("--stacks", "libz:deflate*", "--format", "folded", "-o", str(path), source=CALLERS, as_json=False)
    stacks = {
        tuple(line.rpartition(" ")[0].split(";")): int(line.rpartition(" ")[2])
        for line in path.read_text().splitlines()
    }
    assert all(value > 0 for value in stacks.values())
    named = [[frame.partition(" ")[0] for frame in stack] for stack in stacks]
    for end in (["inner", *WRAPPER, "deflate"], ["deflateReset", "deflateResetKeep"]):
        assert any(names[-len(end) :] == end for names in named), named


@pytest.mark.stress
def test_children_have_stacks_of_their_own(launch, tmp_path):
    path = tmp_path / "folded"
    source = """
    import os, zlib
    def both(): zlib.compress(b"x")
    def child(): zlib.compress(b"x")
    both()
    if not os.fork():
        both(); child(); os._exit(0)
    os.wait()
    """
    launch("--stacks", "libz:deflate", "--format", "folded", "-o", str(path), source=source, as_json=False)
    found = [line.split(";") for line in path.read_text().splitlines()]
    roots = {stack[0] for stack in found}
    assert len(roots) == 2
    assert sorted(stack[2].partition(" ")[0] for stack in found) == ["both", "both", "child"]


@pytest.mark.stress
def test_a_flame_graph_of_a_deep_recursion(launch, tmp_path):
    """Hazard: JSON that is nested as deeply."""
    path = tmp_path / "graph.html"
    source = """
    import sys, zlib
    sys.setrecursionlimit(5000)
    def deeper(n): return deeper(n - 1) if n else zlib.compress(b"x")
    deeper(3000)  # TITLE, DATA
    """
    done = launch(
        "--stacks",
        "libz:deflate",
        "--format",
        "flame",
        "-o",
        str(path),
        words=("-c", textwrap.dedent(source)),
        as_json=False,
    )
    assert done.err == ""
    ((_, calls, frames),) = json.loads(re.search(r"application/json.>(.*)</script>", page := path.read_text())[1])[
        "stacks"
    ]
    assert page.count("deeper(3000)  # TITLE, DATA") == 2  # title and heading
    assert calls == 1 and len(frames) == 1 + 3001 + len(WRAPPER) + 1


BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)


@pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium-headless-shell")
def test_the_flame_graph_in_a_browser(launch, tmp_path):
    path = tmp_path / "graph.html"
    launch("--stacks", "libz:deflate*", "--format", "flame", "-o", str(path), source=CALLERS, as_json=False)
    page = path.read_text()
    assert "http://" not in page and "https://" not in page and "src=" not in page
    path.write_text(page.replace("</body>", f"<script>{COLORS}</script></body>"))
    seen = [_seen(path, scheme) for scheme in ("1", "0")]
    for kind, name in (("all", "all"), ("python", "outer (app.py:"), ("native", "deflate [libz]")):
        assert f'class="frame {kind}"' in seen[0] and f">{name}" in seen[0]
    assert re.search(r'title="deflate \[libz\]\n[\d.]+ [mu]s, [\d.]+ %, 50 calls"', seen[0])
    assert "Probed: libz:deflate*. Width: time inside the probed functions" in seen[0]
    light, dark = (json.loads(re.search("<title>(.*)</title>", text)[1]) for text in seen)
    assert light["back"] == "rgb(255, 255, 255)" and dark["back"] == "rgb(27, 27, 29)"
    for colors in (light["frames"], dark["frames"]):
        assert len({colors[name] for name in ("app.py", "libz", "gzip.py")}) == 3
    assert light["frames"]["libz"] != dark["frames"]["libz"]


COLORS = r"""
const frames = {};
for (const frame of document.querySelectorAll(".frame")) {
  const found = /\(([^(]*):\d+\)$|\[(.*)\]$/.exec(frame.textContent);
  if (found) frames[found[1] || found[2]] = getComputedStyle(frame).backgroundColor;
}
document.title = JSON.stringify({ back: getComputedStyle(document.body).backgroundColor, frames });
"""


def _seen(path, scheme):
    """The document when the page's script has run. `scheme`: of colours, 0 is dark."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
        f"--blink-settings=preferredColorScheme={scheme}", f"--user-data-dir={path.parent}/profile", path.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, text=True, capture_output=True, timeout=100).stdout


@needs_compilers
def test_stacks_go_on_through_libraries_that_are_loaded_later(launch, tmp_path):
    """They ended at the second function of such a library, as there were no unwind tables of it."""
    names = [f"level_{number}" for number in range(6)]
    own = "__attribute__((noinline, noipa)) int"
    source = f"{own} level_0(int n) {{ return n; }}\n"
    source += "".join(f"{own} {name}(int n) {{ return {inner}(n) + 1; }}\n" for inner, name in pairwise(names))
    build_library(tmp_path / "liblater.so", source, "-xc")
    code = f"import ctypes\ndef calls(): ctypes.CDLL({str(tmp_path / 'liblater.so')!r}).level_5(1)\ncalls()"
    (stack,) = launch("--stacks", "liblater:level_0", "-c", code).report["processes"][0]["stacks"]
    assert [frame.partition(" ")[0] for frame in stack["frames"][-6:]] == names[::-1]
    assert any(frame.startswith("calls (") for frame in stack["frames"])
