"""Hazard: a program has modules with the names of our packages; each side must find its own, also later and in children."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sampled import in_stress, sampled

ROOT = Path(__file__).parents[3]
RUN = [str(Path(sys.executable).with_name("fprobe")), "run", "--stat", "libz:crc32", "-o", os.devnull]
FILES = {
    "sandbox.py": "def name(): return 'own sandbox'\nclass Pickled: pass\n",
    "ftrace/__init__.py": "from ftrace.core import depth\n",
    "ftrace/core/__init__.py": "depth = 'own ftrace.core'\n",
    "ftrace/events.py": "kind = 'own ftrace.events'\n",
    "kprobes/__init__.py": "",
    "kprobes/place.py": "here = 'own kprobes.place'\n",
}
USES = "import sandbox, ftrace, ftrace.events, kprobes.place\n"
PRINTS = "print(sandbox.name(), ftrace.depth, ftrace.events.kind, kprobes.place.here, sep=', ')\n"
OWN = "own sandbox, own ftrace.core, own ftrace.events, own kprobes.place\n"


def _written(directory: Path, **files: str) -> Path:
    for name, text in {**FILES, **files}.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def _run(*command: str, cwd: Path, run: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    python = RUN if run else [sys.executable]
    return subprocess.run(
        [*python, *command], cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60
    )


def _printed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


CALLS = "import zlib\nzlib.crc32(b'x')\n"


def test_a_script_finds_its_own(tmp_path):
    """From another directory, so that only the script's directory has them."""
    app = _written(tmp_path / "app", **{"main.py": CALLS + USES + PRINTS})
    assert _printed(_run(str(app / "main.py"), cwd=tmp_path)) == OWN


@pytest.mark.stress
def test_with_m_those_of_the_current_directory(tmp_path):
    _written(tmp_path, **{"main.py": CALLS + USES + PRINTS})
    assert _printed(_run("-m", "main", cwd=tmp_path)) == OWN


@pytest.mark.stress
def test_on_a_path_that_the_program_adds_later(tmp_path):
    _written(tmp_path / "later")
    (tmp_path / "main.py").write_text(f"{CALLS}import sys\nsys.path.insert(0, 'later')\n{USES}{PRINTS}")
    assert _printed(_run("main.py", cwd=tmp_path)) == OWN


@pytest.mark.stress
def test_on_pythonpath_before_fprobe(tmp_path):
    """Ours are loaded from where they are, wherever the path of a child leads first."""
    _written(tmp_path / "before")
    (tmp_path / "main.py").write_text(CALLS + USES + PRINTS)
    assert _printed(_run("starts.py", cwd=_starting(tmp_path))) == OWN


def _starting(directory: Path) -> Path:
    """A program that starts main.py with the directory `before` in PYTHONPATH."""
    (directory / "starts.py").write_text(
        "import os, subprocess, sys\n"
        "subprocess.run([sys.executable, 'main.py'], env={**os.environ, 'PYTHONPATH': 'before'}, check=True)\n"
    )
    return directory


@pytest.mark.stress
def test_a_namespace_package_without_a_regular_one_beside_it(tmp_path):
    """A package without __init__ is found after ours, as without probes, unless ours are not on the path."""
    (tmp_path / "kprobes").mkdir()
    (tmp_path / "kprobes" / "mine.py").write_text("here = 'mine'\n")
    (tmp_path / "main.py").write_text(
        f"{CALLS}import os, sys\nsys.path[:] = [each for each in sys.path if os.path.realpath(each) != {str(ROOT)!r}]\n"
        "import kprobes.mine\nprint(kprobes.mine.here)\n"
    )
    assert _printed(_run("main.py", cwd=tmp_path)) == "mine\n"


@pytest.mark.stress
def test_its_objects_are_pickled_for_a_process_that_is_spawned(tmp_path):
    text = (
        f"{CALLS}import multiprocessing, sandbox\n"
        "def told(one): return [type(one).__module__, sandbox.name()]\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(*pool.apply(told, [sandbox.Pickled()]))\n"
    )
    app = _written(tmp_path / "app", **{"main.py": text})
    assert _printed(_run(str(app / "main.py"), cwd=tmp_path)) == "sandbox own sandbox\n"


@pytest.mark.stress
def test_libraries_that_are_loaded_later_are_probed(tmp_path):
    """Our modules import others of ours while the program's are in sys.modules."""
    main = f"{USES}{PRINTS}import zlib\nfor n in range(3): zlib.crc32(b'x')\n"
    app = _written(tmp_path / "app", **{"main.py": main})
    done = subprocess.run([*RUN[:-2], str(app / "main.py")], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert _printed(done) == OWN
    assert [line.split()[-3] for line in done.stderr.splitlines() if line.endswith("crc32 [libz]")] == ["3"]


@pytest.mark.stress
@pytest.mark.parametrize("run", sampled([True, False], 1))
@pytest.mark.parametrize("first", ["import sandbox\n", in_stress("")])
def test_import_fprobe_names_the_two_files_that_meet(tmp_path, run, first):
    text = f"{CALLS}{first}try:\n    import fprobe\nexcept ImportError as error:\n    print(error)\n"
    text += "import sandbox\nprint(sandbox.name())\n"
    app = _written(tmp_path / "app", **{"main.py": text})
    told, name = _printed(_run(str(app / "main.py"), cwd=tmp_path, run=run)).splitlines()
    assert str(ROOT / "sandbox" / "__init__.py") in told
    assert str(app / "sandbox.py") in told
    assert name == "own sandbox"


@pytest.mark.stress
def test_without_own_ones_the_program_gets_the_modules_that_probe_it(tmp_path):
    """One runtime a process: a second set of modules would be refused."""
    text = (
        f"{CALLS}import fprobe, sandbox, ftrace, kprobes.attachment, sys\n"
        "with fprobe.attach('libz:adler32') as probe: zlib.adler32(b'x')\n"
        "print(probe.counts.hits, fprobe.attach.__globals__ is vars(sys.modules['fprobe.attachment']))\n"
        "assert fprobe.__spec__.name == 'fprobe' and sandbox.__spec__.name == 'sandbox'\n"
    )
    (tmp_path / "main.py").write_text(text)
    assert _printed(_run("main.py", cwd=tmp_path)) == "1 True\n"
