"""The tests on every Python that is there: `make matrix`, or `python -m tests.pythons [--python VERSION]... [PYTEST ARGUMENTS]`.

An interpreter is the `pythonVERSION` of PATH, or of pyenv. Each has an environment and a cache in `.matrix`. Those that are not
there are named. Exit code 1 if tests fail on one, or none is there.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".matrix"
PARALLEL = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")


def versions() -> list[str]:
    """Those of the classifiers in pyproject.toml."""
    return re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())


def _number(path: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", path.parts[-3])]


def interpreter(version: str) -> str | None:
    """The path of an interpreter of this version that can be run; of pyenv's, the newest."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    found = [*sorted(pyenv.glob(f"{version}.*/bin/python{version}"), key=_number, reverse=True)]
    for path in (shutil.which(f"python{version}"), *found):
        if path and subprocess.run([path, "-c", "import venv"], capture_output=True).returncode == 0:
            return str(path)
    return None


def prepare(version: str, python: str) -> Path:
    """The Python of its environment. Raises CalledProcessError if it cannot be made."""
    place = ENVIRONMENTS / version
    made, installed = place / "bin" / "python", place / ".installed"
    if not installed.exists() or installed.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        subprocess.run([python, "-m", "venv", place], check=True)
        pip = [made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--editable", ".[dev]"], cwd=ROOT, check=True)
        installed.touch()
    return made


def run(version: str, python: str, arguments: list[str]) -> str:
    """Run the tests; what came of it."""
    try:
        made = prepare(version, python)
    except subprocess.CalledProcessError as error:
        return f"no environment: {error}"
    cache = ["-o", f"cache_dir={ENVIRONMENTS / version / 'cache'}"]
    done = subprocess.run([made, "-m", "pytest", *PARALLEL, *cache, *arguments], cwd=ROOT)
    return "passed" if done.returncode == 0 else f"failed (exit code {done.returncode} of pytest)"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests on every Python that is there.", allow_abbrev=False)
    parser.add_argument("--python", action="append", choices=versions(), help="default: all")
    chosen, arguments = parser.parse_known_args()
    results = {}
    for version in chosen.python or versions():
        python = interpreter(version)
        if python is None:
            results[version] = f"not there: no python{version} in PATH or of pyenv (docs/pythons.md)"
        else:
            print(f"== {version}: {python}", flush=True)
            results[version] = run(version, python, arguments)
    print(*(f"{version:<6}{result}" for version, result in results.items()), sep="\n")
    ran = [result for result in results.values() if not result.startswith("not there")]
    return int(not ran or any(result != "passed" for result in ran))


if __name__ == "__main__":
    sys.exit(main())
