"""Functions that cannot be probed, whatever the probe, or whose return cannot be hooked: by their names, and by their code."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from sandbox.images.linkage import (
    Exits,
    callee,
    exits,
    function_reached,
    jump_targets,
    jumped_to,
    leaves,
    loaded_functions,
)
from sandbox.images.process_text import symbol_at
from sandbox.native.x86_64 import plain_returns
from sandbox.symbols.libraries import library_at
from sandbox.x86_64 import kept_registers
from sandbox.x86_64.decoding import Decoded
from sandbox.x86_64.return_slot import uses_its_return

if TYPE_CHECKING:
    from sandbox.native.native_image import NativeImage
    from sandbox.symbols.libraries import Library

CALLED_BY_HITS = ("__errno_location", "pthread_setspecific", "pthread_setcancelstate")
"""Functions that are called when a task's record is claimed, or around handlers: a probe would be hit by its own handler."""
_SWITCH_STACKS = frozenset(
    {
        *("swapcontext", "setcontext", "getcontext", "makecontext", "start_context", "ffi_call_unix64"),
        *("longjmp", "siglongjmp", "longjmp_chk", "longjmp_cancel"),
    }
)
_ASKING = frozenset({"dlopen", "dlmopen", "dlsym", "dlvsym"})
"""Functions that act for their caller, which they find by their return address."""
_FEW = 32
"""So few functions are decoded if they have a jump to any other; of more, those with one to a reader of the return address."""
_READS, _LEADS = "reads its own return address", "which reads the return address"
_NUMBER = re.compile("0x[0-9a-f]+")
_LONGEST = 15
"""Bytes of the longest instruction."""
_RETURN_TWICE = frozenset({"setjmp", "sigsetjmp", "vfork", "clone", "clone3"})
_INTERNAL = re.compile(r"^_+(?:(?:GI|libc)_+)?|@.*")
"""Prefixes of the C library's internal names of a function, and the version of a symbol."""
_RUNS_PYTHON = re.compile(r"(libc|libpthread|ld-linux-x86-64|libpython[\d.]*|python[\d.]*)(\.so.*|-[\d.]+\.so|)$")


@cache
def called_by_hits() -> frozenset[int]:
    """The addresses of CALLED_BY_HITS, as the dynamic linker binds them: of the C library, or of one loaded before it."""
    process = ctypes.CDLL(None)
    return frozenset(ctypes.cast(process[name], ctypes.c_void_p).value or 0 for name in CALLED_BY_HITS)


def named_refusal(name: str) -> str:
    """Why the return of a function of that name cannot be hooked; '' if nothing is known against it."""
    bare = _INTERNAL.sub("", name)
    if bare in _SWITCH_STACKS:
        return f"{name} switches stacks"
    return f"{name} returns twice" if bare in _RETURN_TWICE else ""


@lru_cache(maxsize=1 << 16)
def _by_code(code: bytes, start: int) -> str:
    return uses_its_return(code, start, callee, _reader, _keeps)


def _keeps(call: Decoded, register: str) -> bool:
    """Whether the routine that is called certainly leaves a register as it is."""
    target = int(call.operands, 16) if _NUMBER.fullmatch(call.operands) else 0
    library = library_at(target)
    low, high = next(((a, b) for a, b in library.text if a <= target < b), (0, 0)) if library is not None else (0, 0)

    def read(at: int) -> bytes:
        return ctypes.string_at(at, min(high - at, _LONGEST)) if low <= at < high else b""

    return kept_registers.keeps(read, target, register)


def _reader(jump: Decoded) -> str:
    """The name of the function that a jump leads to, if it reads the return address, or jumps to one that does."""
    name = callee(jump)
    if name in _ASKING:
        return name
    reached = function_reached(jump)
    return reached.name if reached is not None and _reads_return(reached.address, reached.size) else ""


@lru_cache(maxsize=1 << 12)
def _reads_return(start: int, size: int) -> bool:
    """Whether a function reads its return address, or jumps to one that does, over others or not."""
    seen, waiting = set[int](), [(start, size)]
    while waiting:
        at, length = waiting.pop()
        if at not in seen:
            seen.add(at)
            reads, jumps = _what_it_does(at, length)
            if reads:
                return True
            waiting += jumps
    return False


@lru_cache(maxsize=1 << 12)
def _what_it_does(start: int, size: int) -> tuple[bool, tuple[tuple[int, int], ...]]:
    """Whether a function itself reads its return address; and start and size of the functions that it jumps to."""
    jumps = list[tuple[int, int]]()

    def note(jump: Decoded) -> str:
        name, reached = callee(jump), function_reached(jump)
        if reached is not None:
            jumps.append((reached.address, reached.size))
        return name if name in _ASKING else ""

    return _is_reading(uses_its_return(ctypes.string_at(start, size), start, callee, note)), tuple(jumps)


def _is_reading(reason: str) -> bool:
    return _READS in reason or _LEADS in reason


def code_refusal(code: bytes, start: int) -> str:
    """Why the return of the function with these bytes at `start` cannot be hooked; '' if it can, as far as can be seen."""
    return _by_code(code, start)


def code_refusals(image: NativeImage, codes: Sequence[bytes], starts: Sequence[int]) -> list[str]:
    """The same for many functions. `image` has `plain_functions`."""
    known = plain_returns.are_plain(image, codes)
    library = library_at(starts[0]) if starts else None
    is_few = len(codes) < _FEW
    if library is not None:
        leading = leaves if is_few else exits(library, _ASKING).any_in
        known = [plain and not leading(code, at) for plain, code, at in zip(known, codes, starts, strict=True)]
    reasons = ["" if plain else code_refusal(code, at) for plain, code, at in zip(known, codes, starts, strict=True)]
    if library is not None and not is_few:
        _follow_jumps(image, library, codes, starts, reasons)
    return reasons


def _follow_jumps(
    image: NativeImage, library: Library, codes: Sequence[bytes], starts: Sequence[int], reasons: list[str]
) -> None:
    """Add why functions are refused that jump to those which read the return address, and to these in turn."""
    readers = {start for start, reason in zip(starts, reasons, strict=True) if _is_reading(reason)}
    readers |= _other_readers(image, library, codes, starts)
    while readers:
        names = {symbol.name for start in readers if (symbol := symbol_at(start)) is not None}
        found, readers = Exits(library, names, readers), set()
        for index, (code, start) in enumerate(zip(codes, starts, strict=True)):
            if not reasons[index] and found.any_in(code, start) and (reason := code_refusal(code, start)):
                reasons[index] = reason
                readers.add(start)


def _other_readers(image: NativeImage, library: Library, codes: Sequence[bytes], starts: Sequence[int]) -> set[int]:
    """Those of other functions that these jump to which read the return address."""
    targets = {
        to
        for code, start in zip(codes, starts, strict=True)
        for to in (*jump_targets(code, start), *loaded_functions(code, start, library))
    }
    others = {
        each.address: each.size for to in targets.difference(starts) if (each := jumped_to(to, library)) is not None
    }
    plain = plain_returns.are_plain(image, [ctypes.string_at(to, size) for to, size in others.items()])
    return {
        to for (to, size), known in zip(others.items(), plain, strict=True) if not known and _reads_return(to, size)
    }


def runs_python(image: str) -> bool:
    """Whether Python runs on the image of that name: the C library, the dynamic loader or the interpreter.

    A thread that is in it may hold a lock, or be amid a change, that a Python handler needs: it would wait for itself.
    """
    return bool(_RUNS_PYTHON.match(image))
