"""A cache of what is known of functions by their code; a function is decoded again when its bytes have changed."""

from __future__ import annotations

from ftrace.core.sites.refusals import code_refusal
from kprobes.jump.safety import Function, examine
from kprobes.place import between, original_text
from sandbox.elf.unwinder import landing_pads
from sandbox.memory.pages import PAGE, read
from sandbox.process.gil import short_switch_interval
from sandbox.symbols.loaded import changes
from sandbox.x86_64.instruction import MAX_INSN_SIZE
from sandbox.x86_64.stack_movers import StackMovers

_NEAR = 1 << 20
"""How far away from a function those that it calls are examined."""
_known: dict[tuple[int, int], Function] = {}
_unhookable: dict[tuple[int, int], tuple[int, str]] = {}
"""The hash of the code, and why it rules out hooking its return."""
_unloads: list[int] = [0]
"""How many libraries had been unloaded when this was found out: other code may be there, or be called."""


def function_at(start: int, end: int) -> Function:
    """The decoded function [start, end), possibly from the cache."""
    known = _known.get((start, end))
    if known is None:
        with short_switch_interval():
            pads = tuple(pad for pad in landing_pads(start) if start <= pad < end)
            known = _known[start, end] = examine(original_text(start, end - start), start, pads)
    return known


def function_around(address: int, start: int, end: int) -> Function:
    """The decoded function [start, end); decoded again if the instruction at `address` has changed.

    Nobody need have told that other code is there now: while no probe is in it, all of it is compared.
    """
    _forget_unloaded()
    known = _known.get((start, end))
    if known is not None and not (
        original_text(address, min(MAX_INSN_SIZE, end - address)) == known.code_at(address)
        if between(start, end)
        else original_text(start, end - start) == known.code
    ):
        del _known[start, end]
    return function_at(start, end)


def return_refusal(start: int, end: int) -> str:
    """Why the code of [start, end) rules out hooking its return; '' if it does not."""
    _forget_unloaded()
    code = original_text(start, end - start)
    known, reason = _unhookable.get((start, end), (None, ""))
    if known != hash(code):
        movers = StackMovers(_called_text)
        reason = code_refusal(code, start) or movers.called_by(code, start, start - _NEAR, end + _NEAR)
        _unhookable[start, end] = hash(code), reason
    return reason


def _called_text(address: int, size: int) -> bytes:
    """The text from `address` on, `size` bytes or up to the end of the page. Raises OSError where nothing is mapped.

    Bytes that look like a call need not be one, so this may lead anywhere.
    """
    try:
        read(address, size)
    except OSError:
        size = min(size, PAGE - address % PAGE)
        read(address, size)
    return original_text(address, size)


def _forget_unloaded() -> None:
    _, unloads = changes()
    if unloads != _unloads[0]:
        _unloads[0] = unloads
        _known.clear()
        _unhookable.clear()


def forget_functions(low: int, high: int) -> None:
    """The code in [low, high) has been freed."""
    for spans in (_known, _unhookable):
        for span in [span for span in spans if low <= span[0] < high]:
            del spans[span]
