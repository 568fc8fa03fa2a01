"""Integers that maps, buffers, actions and calls in handlers take: whatever does not fit is refused by name."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from isolation import isolated
from programs import basic

import fprobe
import kprobes
from ftrace.ring_buffer.buffer import Buffer
from sandbox.native import u64

NO_INTEGERS = ["1", 1.5, b"1"]
NO_WORDS = [1 << 64, -(1 << 64)]


def wrong(name: str, value: Any, call: Callable[[Any], Any], *errors: type[Exception]) -> str:
    """What is wrong with the refusal of `value`, if anything."""
    try:
        call(value)
    except TypeError as error:
        fits = not isinstance(value, int) and name in str(error) and repr(value) in str(error)
        return "" if fits else f"{name}: {error}"
    except errors as error:
        return "" if isinstance(value, int) and name in str(error) and str(value) in str(error) else f"{name}: {error}"
    except BaseException as error:
        return f"{name}: {error!r}"
    return f"{name}: {value!r} is accepted"


def refusals(name: str, values: list[Any], call: Callable[[Any], Any], *errors: type[Exception]) -> list[str]:
    return list(filter(None, (wrong(name, value, call, *errors) for value in [*NO_INTEGERS, *values])))


HISTOGRAM = fprobe.Histogram(rows=2)
ARRAY = fprobe.Array(u64, 3)
CALLS: dict[str, tuple[str, list[Any], Callable[[Any], Any], type[Exception]]] = {
    "array": ("size", [0, -1, None], partial(fprobe.Array, u64), ValueError),
    "hash": ("size", [0, -1, None], partial(fprobe.Hash, u64, u64), ValueError),
    "buckets": ("buckets", [0, -1, None], fprobe.Histogram, ValueError),
    "rows": ("rows", [0, -1, None], lambda rows: fprobe.Histogram(rows=rows), ValueError),
    "step": ("step", [-1, None], lambda step: fprobe.Histogram(9, step=step), ValueError),
    "low": ("low", [-1, None], lambda low: fprobe.Histogram(9, step=1, low=low), ValueError),
    "index": ("index", [-1, 3, None], lambda index: ARRAY[index], IndexError),
    "row": ("row", [-1, 2, None], HISTOGRAM.row, IndexError),
    "bucket": ("bucket", [-1, 65, None], HISTOGRAM.limits, IndexError),
    "capacity": ("capacity", [0, -1, 3, 1 << 32, None], fprobe.Record, ValueError),
    "skip": ("skip", [-1, None], partial(fprobe.stack_trace, 8), ValueError),
    "frame": ("frame", [-1, None], fprobe.rethook_find_ret_addr, OSError),
    "cur": ("cur", [-1, None], partial(fprobe.rethook_find_ret_addr, 0), OSError),
    "blacklist": ("address", [-1, None], kprobes.kprobe_add_ksym_blacklist, OSError),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_numbers_of_maps_actions_and_calls(call):
    name, values, of, error = CALLS[call]
    assert refusals(name, values if call == "skip" else [*NO_WORDS, *values], of, error) == []


def buffer_calls(buffer: Buffer) -> list[tuple[str, Callable[[Any], Any]]]:
    """Those with a slot, and the others."""
    of_slot = [
        buffer.take_page, buffer.take_snapshot_page, buffer.clear_slot, buffer.stats, buffer.written, buffer.overrun,
        buffer.snapshot_overrun, buffer.slot_size_kb, buffer.clear_snapshot, lambda slot: buffer.set_slot_size_kb(slot, 8),
        lambda slot: list(buffer.records(slot)), lambda slot: list(buffer.consume(slot)),
        lambda slot: list(buffer.raw_pages(slot)), lambda slot: list(buffer.snapshot_records(slot)),
        partial(buffer.drain, 1), lambda slot: list(buffer.arrays(7, [("common", "u8")], slot)),
    ]  # fmt: skip
    numbers = {
        "type_id": lambda number: buffer.write(number, b"x"),
        "size_kb": partial(buffer.set_slot_size_kb, 1),
        "subbuf_kb": lambda number: setattr(buffer, "subbuf_kb", number),
    }
    return [*(("slot", call) for call in of_slot), *numbers.items()]


@isolated
def test_numbers_of_a_buffer():
    """A slot that does not exist was an address: take_page(1 << 31) crashed."""
    buffer = Buffer("numbers")
    buffer.allocate_snapshot()
    for name, call in buffer_calls(buffer):
        values = [-1, 2048, 1 << 31, 1 << 32] if name == "slot" else [-1]
        assert refusals(name, [*NO_WORDS, *values], call, ValueError, OSError) == []
    assert buffer.stats(2047).entries == 0
    assert buffer.write(7, b"x") and buffer.written() == 1


@isolated
def test_a_place_to_continue_that_is_no_call():
    """`cur` was an address that was followed."""
    module, found = basic(), []

    def entry(fp, ip, ret_ip, regs, data):
        found.extend(fprobe.rethook_find_ret_addr(regs.sp, cur).address for cur in (1, 8, 1 << 32, regs.sp))
        first = fprobe.rethook_find_ret_addr(regs.sp)
        found.append(fprobe.rethook_find_ret_addr(regs.sp, first.cur).address)
        return 0

    with fprobe.attach("leaf", entry=entry, exit=lambda *hit: None):
        module["twice"](1)
    assert found == [0] * 10


IN_HANDLERS: list[tuple[str, list[Any], Callable[[Any, Any], Any]]] = [
    ("n", [-1, 1 << 32], fprobe.regs_get_kernel_argument),
    ("n", [-1, 1 << 32], fprobe.regs_get_kernel_stack_nth),
    ("n", [-1, 8], fprobe.regs_get_xmm),
    ("n", [-1, 8], lambda regs, n: fprobe.regs_set_xmm(regs, n, 0)),
    ("n", [-1, 8], fprobe.float_argument),
    ("n", [-1, 8], lambda regs, n: fprobe.set_float_argument(regs, n, 1.0)),
    ("value", [], lambda regs, value: fprobe.regs_set_xmm(regs, 0, value)),
    ("value", [], fprobe.regs_set_return_value),
    ("address", [-1], fprobe.instruction_pointer_set),
    ("size", [-1], fprobe.stack_trace_save_regs),
]


@isolated
def test_numbers_in_handlers():
    module, found = basic(), []

    def entry(fp, ip, ret_ip, regs, data):
        for name, values, call in IN_HANDLERS:
            every = [*NO_INTEGERS, *values, *(NO_WORDS if name != "size" else [])]
            found.extend(wrong(name, value, partial(call, regs), ValueError) for value in every)
        for call in (fprobe.float_argument, lambda regs, n, bits: fprobe.set_float_argument(regs, n, 1.0, bits)):
            found.append("" if refused_bits(partial(call, regs, 0)) else "bits")
        return 0

    with fprobe.attach("leaf", entry=entry) as probe:
        assert module["leaf"](1) == 2
    assert probe.fp.errors.count == 0
    assert set(found) == {""}


def refused_bits(call: Callable[[int], Any]) -> bool:
    with pytest.raises(ValueError, match="bits is 16; it must be 32 or 64"):
        call(16)
    return True


@pytest.mark.parametrize("target", [1.5, [1.5], [None], ["leaf", 5], None])
def test_what_is_no_target(target):
    """Of a list with names and numbers, the numbers were names: no function called '1.5'."""
    with pytest.raises(TypeError, match="not a target"):
        fprobe.attach(target, entry=lambda *hit: 0).attach()
    if target != ["leaf", 5]:  # kprobes take both
        with pytest.raises(TypeError, match="not a target"):
            kprobes.attach(target, pre=lambda *hit: 0)


def test_flags_of_a_file():
    from fprobe.tracefs import tracefs

    assert refusals("flags", [*NO_WORDS, -1, 1 << 31, None], partial(tracefs.open, "trace"), OSError) == []
