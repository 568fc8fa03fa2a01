"""The intrinsics of the language: their names, parameters and results.

`TABLE` has the parameters and result of each; `calls` checks against it, `lower_intrinsics` emits it.
"""

from __future__ import annotations

from typing import Any

ORDERS = ("relaxed", "acquire", "release", "acq_rel", "seq_cst")


class Intrinsic:
    """An operation that exists only in compiled code.

    `shape` is a sequence of letters, one per argument: `a` address of an integer or pointer, `v` value of what the
    address points to, `i` any integer, `b` bool, `u` u64, `p` any pointer, `w` one of up to seven words of a
    system call, `o` memory order (last, optional when `order` names the default).
    `result` is `value` (what the address points to), `same` (the type of the first argument), or a type's name.
    """

    def __init__(self, name: str, shape: str, result: str, order: str = "", orders: tuple[str, ...] = ORDERS) -> None:
        self.name = name
        self.shape = shape
        self.result = result
        self.order = order
        self.orders = orders

    def __call__(self, *_arguments: Any) -> Any:
        """Raises TypeError: there is no Python meaning for this."""
        raise TypeError(f"{self.name}() works only inside a @native function")


class Construct(Intrinsic):
    """A call form with rules of its own, checked by the method of the same name in `calls`."""


def _table(*rows: Intrinsic) -> dict[str, Intrinsic]:
    return {row.name: row for row in rows}


_RMW = [
    Intrinsic(f"atomic_{name}", "av", "value", "seq_cst") for name in ("add", "sub", "and", "or", "xor", "exchange")
]

TABLE = _table(
    *_RMW,
    Intrinsic("load", "a", "value", "relaxed", ("relaxed", "acquire", "seq_cst")),
    Intrinsic("store", "av", "void", "relaxed", ("relaxed", "release", "seq_cst")),
    Intrinsic("atomic_cas", "avv", "bool", "seq_cst"),
    Intrinsic("fence", "", "void", "seq_cst", ("acquire", "release", "acq_rel", "seq_cst")),
    Intrinsic("signal_fence", "", "void"),
    Intrinsic("volatile_load", "a", "value"),
    Intrinsic("volatile_store", "av", "void"),
    Intrinsic("single_add", "av", "void"),
    Intrinsic("single_sub", "av", "void"),
    Intrinsic("single_cas", "avv", "bool"),
    Intrinsic("rdtsc", "", "u64"),
    Intrinsic("pause", "", "void"),
    Intrinsic("prefetch", "a", "void"),
    Intrinsic("trap", "", "void"),
    Intrinsic("likely", "b", "bool"),
    Intrinsic("unlikely", "b", "bool"),
    Intrinsic("read_fs", "u", "u64"),
    Intrinsic("frame_address", "", "u64"),
    Intrinsic("return_address", "", "u64"),
    Intrinsic("stack_pointer", "", "u64"),
    Intrinsic("popcount", "i", "same"),
    Intrinsic("leading_zeros", "i", "same"),
    Intrinsic("trailing_zeros", "i", "same"),
    Intrinsic("byteswap", "i", "same"),
    Intrinsic("multiply_high", "uu", "u64"),
    Intrinsic("syscall", "wwwwwww", "i64"),
    Construct("cast", "", ""),
    Construct("addressof", "", ""),
    Construct("sizeof", "", ""),
    Construct("offsetof", "", ""),
    Construct("zero_fill", "", ""),
    Construct("copy", "", ""),
    Construct("probe_read", "", ""),
    Construct("probe_read_str", "", ""),
)
