"""What `sandbox.native` offers: the same names to Python and to a type checker, and nothing heavy at import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import sandbox.native
from sandbox.native.intrinsics import TABLE

SOURCE = Path(sandbox.native.__file__)


def test_a_type_checker_sees_the_same_names() -> None:
    tree = ast.parse(SOURCE.read_text())
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    words = {alias.name for node in imports for alias in node.names}
    rest = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert words | rest - {"annotations", "TYPE_CHECKING"} == set(sandbox.native.__all__)
    assert set(TABLE) <= words
    assert all(hasattr(sandbox.native, name) for name in sandbox.native.__all__)


def test_importing_loads_neither_llvm_nor_the_front_end() -> None:
    code = "import sys, sandbox.native, sandbox.native.back.fingerprint; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    heavy = {"llvmlite", "capstone", "elftools", "sandbox.native.front.frontend", "sandbox.native.tree"}
    assert heavy & set(loaded.stdout.split()) == set()
