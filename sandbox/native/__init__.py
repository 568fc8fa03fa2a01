"""The native-function language: restricted, typed Python that is compiled to machine code (docs/native.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # To a type checker the words of the language are Any: the native compiler itself checks their types.
    from _native_words import (  # type: ignore[import-not-found]
        addressof,
        array,
        atomic_add,
        atomic_and,
        atomic_cas,
        atomic_exchange,
        atomic_or,
        atomic_sub,
        atomic_xor,
        bool_,
        byteswap,
        cast,
        copy,
        fence,
        fn,
        fn_preserve_most,
        frame_address,
        i8,
        i16,
        i32,
        i64,
        leading_zeros,
        likely,
        load,
        multiply_high,
        null,
        offsetof,
        pause,
        popcount,
        prefetch,
        probe_read,
        probe_read_str,
        ptr,
        rdtsc,
        read_fs,
        return_address,
        signal_fence,
        single_add,
        single_cas,
        single_sub,
        sizeof,
        stack_pointer,
        store,
        syscall,
        trailing_zeros,
        trap,
        u8,
        u16,
        u32,
        u64,
        unlikely,
        void,
        volatile_load,
        volatile_store,
        zero_fill,
        zeroed,
    )  # fmt: skip
else:
    from sandbox.native.front.declarations import null, zeroed
    from sandbox.native.intrinsics import TABLE as _TABLE
    from sandbox.native.types import array, bool_, fn, fn_preserve_most, i8, i16, i32, i64, ptr, u8, u16, u32, u64, void

    globals().update(_TABLE)

from sandbox.native.front.declarations import const, extern, global_var
from sandbox.native.front.errors import NativeError, NativeWarning
from sandbox.native.front.structs import Structure, struct
from sandbox.native.function import NativeFunction, native
from sandbox.native.unit import Unit

__all__ = [
    "NativeError", "NativeFunction", "NativeWarning", "Structure", "Unit", "addressof", "array", "atomic_add", "atomic_and",
    "atomic_cas", "atomic_exchange", "atomic_or", "atomic_sub", "atomic_xor", "bool_", "byteswap", "cast", "const",
    "copy", "extern", "fence", "fn", "fn_preserve_most", "frame_address", "global_var", "i8", "i16", "i32", "i64",
    "leading_zeros", "likely", "load", "multiply_high", "native", "null", "offsetof", "pause", "popcount", "prefetch",
    "probe_read", "probe_read_str", "ptr", "rdtsc", "read_fs", "return_address",
    "signal_fence", "single_add", "single_cas", "single_sub", "sizeof", "stack_pointer", "store", "struct", "syscall",
    "trailing_zeros", "trap", "u8", "u16", "u32", "u64", "unlikely", "void", "volatile_load", "volatile_store",
    "zero_fill", "zeroed",
]  # fmt: skip
