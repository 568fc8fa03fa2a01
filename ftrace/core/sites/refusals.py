"""Functions that cannot be probed, whatever the probe, or whose return cannot be hooked: by their names, and by their code."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from sandbox.images.linkage import callee, exits, function_reached, leaves
from sandbox.native.x86_64 import plain_returns
from sandbox.symbols.libraries import library_at
from sandbox.x86_64.decoding import Decoded
from sandbox.x86_64.return_slot import uses_its_return

if TYPE_CHECKING:
    from sandbox.native.native_image import NativeImage
    from sandbox.symbols.table import Symbol

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
"""Of so few functions, jumps to any others are followed; of more, only those to _ASKING."""
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
    return uses_its_return(code, start, callee, _reader)


def _reader(jump: Decoded) -> str:
    """The name of the function that a jump leads to, if it reads the return address, as far as is seen without other jumps."""
    name = callee(jump)
    if name in _ASKING:
        return name
    reached = function_reached(jump)
    return reached.name if reached is not None and _reads_return(reached) else ""


@lru_cache(maxsize=1 << 12)
def _reads_return(function: Symbol) -> bool:
    return "reads its own return address" in uses_its_return(
        ctypes.string_at(function.address, function.size), function.address, callee
    )


def code_refusal(code: bytes, start: int) -> str:
    """Why the return of the function with these bytes at `start` cannot be hooked; '' if it can, as far as can be seen."""
    return _by_code(code, start)


def code_refusals(image: NativeImage, codes: Sequence[bytes], starts: Sequence[int]) -> list[str]:
    """The same for many functions. `image` has `plain_functions`."""
    plain = plain_returns.are_plain(image, codes)
    library = library_at(starts[0]) if starts else None
    if library is not None:
        leading = leaves if len(codes) < _FEW else exits(library, _ASKING).any_in
        plain = [known and not leading(code, at) for known, code, at in zip(plain, codes, starts, strict=True)]
    return ["" if known else code_refusal(code, at) for known, code, at in zip(plain, codes, starts, strict=True)]


def runs_python(image: str) -> bool:
    """Whether Python runs on the image of that name: the C library, the dynamic loader or the interpreter.

    A thread that is in it may hold a lock, or be amid a change, that a Python handler needs: it would wait for itself.
    """
    return bool(_RUNS_PYTHON.match(image))
