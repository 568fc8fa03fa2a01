"""The cache of compiled objects that later runs of the tests find again."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

import llvmlite

ROOT = Path(__file__).parents[1]
OTHER_MACHINES = ("GLIBC_TUNABLES", "FPROBE_FORCE", "FPROBE_DENY")
"""Environment variables by which this machine plays one that lacks something: such a run compiles everything."""

COMPILERS = ("abi", "compile", "elf", "native", "process", "x86_64")
"""The folders of sandbox/ that `compile` and `native` import: what is in no other can change an object, but by its source."""


def kept_objects(parent: Path, compilers: Path = ROOT / "sandbox") -> Path | None:
    """The directory for what the compilers in their present state make: who changes one sees what it makes.

    Those for other states are deleted. None on other machines.
    """
    if any(map(os.environ.get, OTHER_MACHINES)):
        return None
    digest = hashlib.sha256(repr((sys.version_info, llvmlite.__version__, ROOT)).encode())
    for folder in COMPILERS:
        for path in sorted((compilers / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    kept = parent / digest.hexdigest()[:16]
    for other in parent.iterdir():
        if other != kept:
            shutil.rmtree(other, ignore_errors=True)
    return kept
