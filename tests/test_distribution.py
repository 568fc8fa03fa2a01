"""What `make dist` makes: a wheel and a source distribution, installed in a new environment and tried there."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import hatch_build

ROOT = Path(__file__).parents[1]
VERBS = ("trace", "stat", "run", "record", "report", "hist", "tracefs", "explain")


def run(*words: object, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=500, cwd=cwd, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_manual_pages_have_the_texts_of_help() -> None:
    pages = hatch_build.pages("1.2.3")
    assert {f"fprobe-{verb}.1" for verb in VERBS} < set(pages)
    assert all(f"fprobe\\-{verb}(1)" in pages["fprobe.1"] for verb in VERBS)
    stat = pages["fprobe-stat.1"]
    assert stat.startswith('.TH FPROBE-STAT 1 "" "fprobe 1.2.3"\n.SH NAME\nfprobe\\-stat \\- Count and time calls\n')
    assert ".B \\-x, \\-\\-exclude PATTERN\nNot these.\n" in stat
    assert "\nfprobe stat vfs_read \\-\\-by caller\n" in stat.partition(".SH EXAMPLES\n.nf\n")[2]
    lines = [line for page in pages.values() for line in page.splitlines()]
    macros = {line.split()[0] for line in lines if line.startswith((".", "'"))}
    assert macros == {".TH", ".SH", ".PP", ".TP", ".B", ".nf", ".fi"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.mark.stress
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_what_is_installed_works(dist: Path, tmp_path: Path, kind: str) -> None:
    (made,) = dist.glob(kind)
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    here = tmp_path / "venv" / "bin"
    run(here / "pip", "install", "--quiet", "--disable-pip-version-check", made)
    rows = json.loads(run(here / "fprobe", "stat", "vfs_*", "--json", cwd=tmp_path))["functions"]
    assert sum(row["hits"] for row in rows if row["name"] == "vfs_read") > 0
    source = "import zlib; zlib.crc32(b'')"
    shown = run(here / "fprobe", "run", "-o", tmp_path / "report", "--stat", "libz:crc32", "-c", source, cwd=tmp_path)
    assert shown == "" and "crc32" in (tmp_path / "report").read_text()
    assert run(here / "fprobe", "help", "histograms").startswith("# ")
    pages = {path.name for path in (tmp_path / "venv" / "share" / "man" / "man1").glob("fprobe*")}
    assert pages == set(hatch_build.pages("1"))


@pytest.mark.stress
def test_the_sources_are_whole(dist: Path) -> None:
    (made,) = dist.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = run("git", "ls-files", cwd=ROOT).split()
    assert [name for name in tracked if name not in names and not name.startswith(".")] == []
