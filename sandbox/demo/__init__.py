from __future__ import annotations

from importlib.resources import files

NAME = "demo"
_PARTS = ("types", "lib", "mm", "sched", "dcache", "ramfs", "vfs", "syscall", "main")


def source() -> str:
    """The program as LLVM IR text."""
    here = files(__name__)
    return "\n".join(here.joinpath(f"{part}.ll").read_text("utf-8") for part in _PARTS)
