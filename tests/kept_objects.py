"""The cache of compiled objects that later runs of the tests find again."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

import llvmlite
from imports_of import imports

ROOT = Path(__file__).parents[1]
OTHER_MACHINES = ("GLIBC_TUNABLES", "FPROBE_FORCE", "FPROBE_DENY")
"""Environment variables by which this machine plays one that lacks something: such a run compiles everything."""

COMPILERS = ("compile", "native")
"""The folders of sandbox/ whose modules, with all of sandbox/ that these import, make objects: what is in no such module can
change an object only by its source."""
OF_FINISHED_OBJECTS = ("native/native_image.py", "native/linking.py")
"""What these do comes after compiling."""


def kept_objects(parent: Path, sandbox: Path = ROOT / "sandbox") -> Path | None:
    """The directory for what the compilers in their present state make: who changes one sees what it makes.

    Those for other states are deleted. None on other machines.
    """
    if any(map(os.environ.get, OTHER_MACHINES)):
        return None
    digest = hashlib.sha256(repr((sys.version_info, llvmlite.__version__, ROOT)).encode())
    for path in compilers(sandbox):
        digest.update(path.read_bytes())
    kept = parent / digest.hexdigest()[:16]
    for other in parent.iterdir():
        if other != kept:
            shutil.rmtree(other, ignore_errors=True)
    return kept


def compilers(sandbox: Path) -> list[Path]:
    """The modules of which objects depend, by their paths."""
    later = {sandbox / name for name in OF_FINISHED_OBJECTS}
    reached = {path for folder in COMPILERS for path in (sandbox / folder).rglob("*.py")} - later
    waiting = [*reached]
    while waiting:
        named = {name for name in imports(waiting.pop().read_text()) if name.startswith("sandbox.")}
        for name in named:
            path = sandbox.joinpath(*name.split(".")[1:]).with_suffix(".py")
            if path not in reached | later and path.is_file():
                reached.add(path)
                waiting.append(path)
    return sorted(reached)
