"""Files that the kernel has outside tracefs, in the directory fprobe/ of the tree, and laying them over the real ones.

fprobe/kallsyms   /proc/kallsyms
fprobe/kprobes/   /sys/kernel/debug/kprobes/
fprobe/sysctl/    /proc/sys/
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from ftrace.core.kstrtox import simple_strtoul
from ftrace.tracing.files.nodes import Directory, Node, TextFile
from ftrace.tracing.files.sysctl import (
    ftrace_enabled,
    set_ftrace_enabled,
    set_stack_tracer_enabled,
    stack_tracer_enabled,
)
from ftrace.tracing.tracefs.tree import Tracefs
from kprobes import kprobes_optimization, set_kprobes_optimization
from kprobes.events.debugfs import debugfs
from sandbox.symbols.table import owner_text, symbol_table

DIRECTORY = "fprobe"
"""Where they are in the tree."""
_INT_MAX = (1 << 31) - 1
_BIND = 1 << 12
_PLACES = {
    "kallsyms": "/proc/kallsyms",
    "sysctl/debug/kprobes-optimization": "/proc/sys/debug/kprobes-optimization",
    "sysctl/kernel/ftrace_enabled": "/proc/sys/kernel/ftrace_enabled",
    "sysctl/kernel/stack_tracer_enabled": "/proc/sys/kernel/stack_tracer_enabled",
}


def add_to(tree: Tracefs) -> dict[str, Node]:
    """Add the directory to a tree, unless it has it. Returns its entries, to which more can be added."""
    node = tree.root.entries.get(DIRECTORY)
    if not isinstance(node, _Beside):
        node = _Beside()
        tree.add(DIRECTORY, node)
    return node.content


class _Beside(Directory):
    def __init__(self) -> None:
        self.content: dict[str, Node] = {
            "kallsyms": TextFile(kallsyms),
            "kprobes": debugfs.find("kprobes"),
            "sysctl": sysctls(),
        }
        super().__init__(self.content)


def lay_over(mounted: Path) -> None:
    """Bind the files of a mounted tree over the kernel's, as far as it has them. Only in a mount namespace of one's own."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name, place in _PLACES.items():
        if Path(place).exists() and not Path(place).is_dir():
            source = mounted / DIRECTORY / name
            if libc.mount(os.fsencode(source), place.encode(), None, _BIND, None):
                raise OSError(ctypes.get_errno(), f"{source} cannot be bound over {place}")


def kallsyms() -> str:
    """/proc/kallsyms: the symbols of the loaded programs by address, functions (t) and data (d)."""
    return "".join(_lines())


def _lines() -> Iterator[str]:
    for symbol in sorted(symbol_table, key=lambda symbol: symbol.address):
        kind = "t" if symbol.section == ".text" else "d"
        owner = owner_text(symbol.module).replace(" [", "\t[")
        yield f"{symbol.address:016x} {kind} {symbol.name.replace(' ', '_')}{owner}\n"


def sysctls() -> Directory:
    """/proc/sys, as far as it is about tracing."""
    return Directory(
        {
            "debug": Directory({"kprobes-optimization": _sysctl(kprobes_optimization, set_kprobes_optimization)}),
            "kernel": Directory(
                {
                    "ftrace_enabled": _sysctl(ftrace_enabled, set_ftrace_enabled),
                    "stack_tracer_enabled": _sysctl(stack_tracer_enabled, set_stack_tracer_enabled),
                }
            ),
        }
    )


def _sysctl(read: Callable[[], int], write: Callable[[int], None]) -> TextFile:
    return TextFile(lambda: f"{int(read())}\n", lambda text: write(_number(text)))


def _number(text: str) -> int:
    """The first number of the text, as proc_dointvec() takes it: up to a blank, of any base. Raises OSError(EINVAL)."""
    word = (text.split() or [""])[0]
    digits = word.removeprefix("-")
    value, rest = simple_strtoul(digits)
    if rest or not digits[:1].isdigit() or value > _INT_MAX + (digits != word):
        raise OSError(errno.EINVAL, f"{text.strip()!r} is not a number of 32 bits")
    return value if digits == word else -value
