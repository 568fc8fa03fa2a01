"""The text of histograms: the `hist` file of an event.

The kernel sorts the entries of a histogram by the bytes of their keys first (kernel/trace/tracing_map.c), and then with
lib/sort.c, a heap sort, which is not stable. With the same order, texts can be compared line by line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

from ftrace.hit.x86_64.syscall_names import get_syscall_name
from ftrace.tracing import symbols
from ftrace.tracing.events.hist.actions import ONMAX, SNAPSHOT, Action
from ftrace.tracing.events.hist.definition import Definition, SortKey, is_summed
from ftrace.tracing.events.hist.values import HistField, Sort
from sandbox.process.printable import escaped

Item = TypeVar("Item")
Compare = Callable[[Item, Item], int]
"""Returns a number below 0, 0 or above 0 if the first is less than, equal to or greater than the second."""


def heap_sort(items: Sequence[Item], compare: Compare[Item]) -> list[Item]:
    """`items` in ascending order, by the exchanges that lib/sort.c makes."""
    heap = list(items)
    for root in reversed(range(len(heap) // 2)):
        _sift(heap, root, len(heap), compare)
    end = len(heap)
    while end > 3:
        end -= 1
        heap[0], heap[end] = heap[end], heap[0]
        larger = 1 + (compare(heap[1], heap[2]) <= 0)
        end -= 1
        heap[larger], heap[end] = heap[end], heap[larger]
        _sift(heap, larger, end, compare)
        _sift(heap, 0, end, compare)
    _sort_last(heap, end, compare)
    return heap


def _sort_last(heap: list[Item], end: int, compare: Compare[Item]) -> None:
    """Sort the last two or three items."""
    if end < 2:
        return
    end -= 1
    heap[0], heap[end] = heap[end], heap[0]
    if end == 2 and compare(heap[0], heap[1]) > 0:
        heap[0], heap[1] = heap[1], heap[0]


def _sift(heap: list[Item], root: int, end: int, compare: Compare[Item]) -> None:
    """Move the item at `root` to its place: down along the larger children to a leaf, then back up."""
    at = root
    while 2 * at + 2 < end:
        left = 2 * at + 1
        at = left if compare(heap[left], heap[left + 1]) >= 0 else left + 1
    if 2 * at + 2 == end:
        at = 2 * at + 1
    while at != root and compare(heap[root], heap[at]) >= 0:
        at = (at - 1) // 2
    place = at
    while at != root:
        at = (at - 1) // 2
        heap[at], heap[place] = heap[place], heap[at]


_WORD = 1 << 64
_SIGN = 1 << 63


@dataclass(frozen=True)
class Entry:
    """An entry of a histogram. `sums`: the hitcount first, then the values; `key`: words, or bytes of text or a stack.

    `tracked`: the latest value of each action that tracks one; `saved`: names and values of save().
    """

    key: tuple[int | bytes, ...]
    sums: tuple[int, ...]
    comm: str = ""
    tracked: Mapping[int, int] = field(default_factory=dict)
    saved: Sequence[tuple[str, int | bytes]] = ()


@dataclass(frozen=True)
class Contents:
    """The contents of a histogram at one moment."""

    entries: Sequence[Entry]
    hits: int
    dropped: int
    snapshot: Snapshot | None = None


@dataclass(frozen=True)
class Snapshot:
    """The cause of an action's last snapshot."""

    action: Action
    value: int
    entry: Entry


def histogram_text(line: str, definition: Definition, contents: Contents) -> str:
    """The section of one trigger. `line`: its line in the trigger file."""
    shown = sorted_entries(definition, contents.entries)
    entries = "".join(f"{_entry(definition, entry)}\n" for entry in shown)
    totals = f"Totals:\n    Hits: {contents.hits}\n    Entries: {len(shown)}\n    Dropped: {contents.dropped}\n"
    taken = _snapshot(definition, contents.snapshot) if contents.snapshot else ""
    return f"# event histogram\n#\n# trigger info: {line}\n#\n\n{entries}{taken}\n{totals}"


def sorted_entries(definition: Definition, entries: Sequence[Entry]) -> list[Entry]:
    """The entries in the definition's order."""
    # Keys differ, so any sort gives this order.
    ordered = sorted(entries, key=lambda entry: _key_bytes(definition, entry))
    first, *others = definition.sort
    ordered = _sorted_by(definition, first, ordered)
    for key in others:
        primary = _sort_function(definition, first)
        runs = (list(run) for _, run in groupby(ordered, primary))
        ordered = [entry for run in runs for entry in _sorted_by(definition, key, run)]
    return ordered


def _sorted_by(definition: Definition, key: SortKey, entries: Sequence[Entry]) -> list[Entry]:
    value = _sort_function(definition, key)
    sign = -1 if key.descending else 1
    pairs = [(value(entry), entry) for entry in entries]
    return [entry for _, entry in heap_sort(pairs, lambda one, other: sign * _compared(one[0], other[0]))]


def _compared(one: Any, other: Any) -> int:
    return int(one > other) - int(one < other)


def _key_bytes(definition: Definition, entry: Entry) -> bytes:
    """The bytes of the key in the kernel's table."""
    parts = zip(definition.keys, entry.key, strict=True)
    return b"".join(
        part.ljust(field.key_size, b"\0") if isinstance(part, bytes) else part.to_bytes(8, "little")
        for field, part in parts
    )


def decoded_key(definition: Definition, key: bytes) -> tuple[int | bytes, ...]:
    """The parts of a key in a native table."""
    parts: list[int | bytes] = []
    for each in definition.keys:
        part, key = key[: each.key_size], key[each.key_size :]
        if each.sort is Sort.STACKTRACE:
            parts.append(part)
        else:
            parts.append(part.partition(b"\0")[0] if each.is_text else int.from_bytes(part, "little"))
    return tuple(parts)


def _sort_function(definition: Definition, key: SortKey) -> Callable[[Entry], int | bytes]:
    sums = 1 + len(definition.values)
    if key.index < sums:
        return lambda entry: entry.sums[key.index]
    place = key.index - sums
    by = definition.keys[place]
    if by.sort is Sort.STACKTRACE:
        return lambda _entry: 0
    if by.signed:
        return lambda entry: _signed(entry.key[place])
    return lambda entry: entry.key[place]


def _signed(word: int | bytes) -> int:
    assert isinstance(word, int)
    return word - _WORD if word & _SIGN else word


def _entry(definition: Definition, entry: Entry) -> str:
    values = "".join(_values(definition, entry))
    return f"{_key_text(definition, entry)}{values}{''.join(_tracked(definition, entry))}"


def _key_text(definition: Definition, entry: Entry) -> str:
    fields = ", ".join(_key(field, value, entry.comm) for field, value in zip(definition.keys, entry.key, strict=True))
    is_multiline = any(field.sort is Sort.STACKTRACE and field.modifier not in _FIRST_WORD for field in definition.keys)
    return f"{{ {fields}{'' if is_multiline else ' '}}}"


def _key(field: HistField, value: int | bytes, comm: str) -> str:
    if isinstance(value, bytes):
        if field.modifier not in _FIRST_WORD:
            return _bytes_key(field, value)
        value = int.from_bytes(value[:8], "little")
    shown = _KEYS.get(field.modifier)
    return f"{field.title}: {shown(field, value, comm) if shown else f'{value:10}'}"


def _bytes_key(field: HistField, value: bytes) -> str:
    if field.sort is Sort.STACKTRACE:
        return f"{field.title}{'.stacktrace' if field.field else f':{chr(10)}'}{''.join(_frames(value))}"
    return f"{field.title}: {_text(value.decode('utf-8', 'surrogateescape')):<50}"


_is_escaped = ContextVar("_is_escaped", default=False)


@contextmanager
def escaped_texts() -> Iterator[None]:
    """Inside the block, texts in entries are escaped: they cannot be taken for another line. The kernel's are as they are."""
    token = _is_escaped.set(True)
    try:
        yield
    finally:
        _is_escaped.reset(token)


def _text(text: str) -> str:
    return escaped(text) if _is_escaped.get() else text


def _frames(stack: bytes) -> Iterator[str]:
    for at in range(0, len(stack), 8):
        address = int.from_bytes(stack[at : at + 8], "little")
        if not address:
            return
        yield f"{'':9}{_symbol(address, with_offset=True)}\n"


def _symbol(address: int, with_offset: bool) -> str:
    """An address as the kernel's %pS and %ps print it."""
    return symbols.named(address, offset=with_offset) or f"{address:#x}"


_FIRST_WORD = ("hex", "sym", "sym-offset", "syscall")
"""Modifiers that show a text or a stack by its first 8 bytes."""
_KEYS: Mapping[str, Callable[[HistField, int, str], str]] = {
    "hex": lambda _field, value, _comm: f"{value:x}",
    "sym": lambda _field, value, _comm: f"[{value:x}] {_symbol(value, with_offset=False):<45}",
    "sym-offset": lambda _field, value, _comm: f"[{value:x}] {_symbol(value, with_offset=True):<55}",
    "execname": lambda _field, value, comm: f"{_text(comm):<16}[{value:10}]",
    "syscall": lambda _field, value, _comm: f"{get_syscall_name(value) or 'unknown_syscall':<30}[{value:3}]",
    "log2": lambda _field, value, _comm: f"~ 2^{value:<2}",
    "buckets": lambda field, value, _comm: f"~ {value}-{(value + field.buckets - 1) % _WORD}",
}


def _values(definition: Definition, entry: Entry) -> Iterator[str]:
    if not definition.attributes.no_hitcount:
        yield f" hitcount: {entry.sums[0]:10}"
    for value, total in zip(definition.values, entry.sums[1:], strict=True):
        if is_summed(value):
            yield f"  {value.title}: {total:{'10x' if value.modifier == 'hex' else '10'}}"


def _tracked(definition: Definition, entry: Entry) -> Iterator[str]:
    for index, action in enumerate(definition.actions):
        if index in entry.tracked and action.kind is not SNAPSHOT:
            yield f"\n\t{'max' if action.handler == ONMAX else 'changed'}: {entry.tracked[index]:10}"
            yield from (f"  {name}: {_saved(value)}" for name, value in entry.saved)


def _saved(value: int | bytes) -> str:
    return f"{value:10}" if isinstance(value, int) else f"{_text(value.decode('utf-8', 'surrogateescape')):<32}"


def _snapshot(definition: Definition, taken: Snapshot) -> str:
    action = taken.action
    return (
        "\nSnapshot taken (see tracing/snapshot).  Details:\n"
        f"\ttriggering value {{ {action.handler}({action.argument}) }}: {taken.value:10}"
        f"\ttriggered by event with key: {_key_text(definition, taken.entry)}\n"
    )
