"""Places: all kprobes at one address, with the native record, the instruction slot and the state. kprobes.states changes that.

Each address that has ever been probed keeps its place until its code is freed, even after the last probe has left: a thread may
still be executing in the slot.
"""

from __future__ import annotations

import ctypes
import enum
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any, Protocol

from ftrace.core.sites import locations
from ftrace.core.tracer import tracer
from ftrace.hit.x86_64.stubs import SITE_SIZE
from kprobes.breakpoint import patching
from kprobes.breakpoint.slots import InsnSlotCache
from kprobes.children import Children
from kprobes.hit.emulate import register_word
from kprobes.hit.records import EMULATE, NO_REGISTER, SYSCALL, PlaceRecord
from kprobes.hit.runtime import kprobe_runtime
from kprobes.x86_64.classify import Kind
from kprobes.x86_64.slot import BOOSTED, DETOUR, slot_image
from sandbox.process import hooks
from sandbox.x86_64.encoding import NOP5
from sandbox.x86_64.instruction import Flow

if TYPE_CHECKING:
    from kprobes.breakpoint.detours import Detour
    from kprobes.children import PlacedProbe
    from kprobes.x86_64.classify import Classified
    from kprobes.x86_64.emulation import Emulation
    from sandbox.loading.module import Module
    from sandbox.memory.mappings import TextMapping
    from sandbox.symbols.table import Symbol
    from sandbox.x86_64.instruction import Instruction

places: dict[int, Place] = {}
"""Address -> its place, for every address that has been probed."""
_addresses: list[int] = []
"""The keys of `places`, ascending."""
_caches: dict[TextMapping, InsnSlotCache] = {}
retired: list[Any] = []
"""Native memory that a hit may still be reading; freed by the next `settle` that finds no thread inside."""


class State(enum.Enum):
    """How a place is armed, and what the optimiser will change."""

    OFF = "off"
    """Not armed."""
    STUB = "stub"
    """Armed by the function's stub, on an ftrace location."""
    BREAKPOINT = "breakpoint"
    QUEUED = "queued"
    """Armed by a breakpoint that will become a jump: on the kernel's optimizing_list."""
    JUMP = "jump"
    UNOPTIMIZING = "unoptimizing"
    """Not armed, but the jump is still there and will be removed: on the kernel's unoptimizing_list."""


_DISARMED = (State.OFF, State.UNOPTIMIZING)
_OPTIMIZED = (State.QUEUED, State.JUMP, State.UNOPTIMIZING)
_WITH_JUMP = (State.JUMP, State.UNOPTIMIZING)


class PlacedJump(Protocol):
    """The part of `kprobes.jump.jumps.Jump` that a place uses."""

    @property
    def copy(self) -> int: ...

    @property
    def covered(self) -> bytes: ...

    @property
    def detours(self) -> list[Detour]: ...


class Place:
    """An address in the function `symbol`, and the probes there, in `children`.

    `is_entry`: whether it is the function's entry. `text`: the mapping through which it is patched. `module`: None in a
    library. `insn`: the probed instruction; None on an ftrace location, which has neither breakpoint nor slot. `jump`: None
    until the place is first optimised.
    """

    text: TextMapping
    module: Module | None = None
    on_ftrace = False
    record: Any = None
    """Its native PlaceRecord, from `allocate` on."""
    record_address = 0

    def __init__(self, address: int, symbol: Symbol, is_entry: bool) -> None:
        self.address = address
        self.symbol = symbol
        self.is_entry = is_entry
        self.insn: Instruction | None = None
        self.children = Children()
        self.state = State.OFF
        self.jump: PlacedJump | None = None
        self._list: Any = None
        self._is_outdated = False  # whether a child has come or gone since `publish` made _list

    def __str__(self) -> str:
        return f"{self.symbol.name}+{self.address - self.symbol.address:#x} ({self.address:#x})"

    def allocate(self) -> None:
        """Make the native record: the place is about to get its first probe."""
        self._memory = ctypes.create_string_buffer(PlaceRecord.size + 64)
        self.record_address = (ctypes.addressof(self._memory) + 63) & -64
        self.record = PlaceRecord.ctypes.from_address(self.record_address)
        self.record.address = self.address
        self.record.children = ctypes.addressof(_nobody)
        if self.on_ftrace:
            self.record.length, self.record.original = len(NOP5), NOP5[0]

    # -- its state ----------------------------------------------------------------------------------------------

    @property
    def armed(self) -> bool:
        """Whether hits call its probes."""
        return self.state not in _DISARMED

    @property
    def optimized(self) -> bool:
        """KPROBE_FLAG_OPTIMIZED: whether it has a jump, or is queued for one."""
        return self.state in _OPTIMIZED

    @property
    def covered(self) -> bytes:
        """The original bytes under its jump; b"" if it has none."""
        return self.jump.covered if self.jump is not None and self.state in _WITH_JUMP else b""

    @property
    def is_written(self) -> bool:
        """Whether kprobes have changed the text here."""
        return self.state not in (State.OFF, State.STUB)

    # -- the instruction and the children -----------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Length of the probed instruction in bytes."""
        return self.insn.length if self.insn else SITE_SIZE

    @property
    def scratch_is_free(self) -> bool:
        """Whether r10, r11 and the flags are free at the entry and the return of the function at this place."""
        module = self.module
        return module is not None and not module.scratch_kept and self.symbol.name not in module.scratch_taken

    @property
    def original(self) -> bytes:
        """The original bytes of the instruction."""
        return self.insn.code if self.insn else NOP5

    # -- the slot, and how hits find the place ------------------------------------------------------------------

    def allocate_slot(self, insn: Instruction, found: Classified) -> None:
        """Allocate and write the slot. Raises OSError(ENOMEM); OverflowError for an operand that the slot cannot reach."""
        cache = _caches.get(self.text)
        if cache is None:
            cache = _caches[self.text] = InsnSlotCache(self.text, kprobe_runtime().image.address("kprobe_detour"))
        page, slot, common = cache.take()
        self.insn = insn
        emulation, boostable = found.emulation, found.kind is Kind.BOOST
        image, trapping = slot_image(insn, slot, common, self.record_address, emulation, boostable)
        patching.write(page, slot, image)
        record = self.record
        record.length, record.original = insn.length, insn.code[0]
        record.slot, record.detour = slot, slot + DETOUR
        record.boosted = slot + BOOSTED if boostable else 0
        record.step_end = slot + trapping - 1
        if emulation is not None:
            describe_emulated(record, emulation)
        elif insn.flow is Flow.SYSCALL:
            record.execution = SYSCALL

    def enlist(self) -> None:
        """Enter it in the table in which hits look up addresses."""
        places[self.address] = self
        insort(_addresses, self.address)
        table = kprobe_runtime().table
        if not self.on_ftrace:
            table.set(self.record.slot, self.record_address)
        table.set(self.address, self.record_address)

    def forget(self) -> None:
        """Its code is about to be freed."""
        table = kprobe_runtime().table
        table.set(self.address, 0)
        if not self.on_ftrace:
            table.set(self.record.slot, 0)
        del places[self.address]
        _addresses.remove(self.address)
        retired.append((self.record, self._memory, self._list))

    # -- children -----------------------------------------------------------------------------------------------

    def join(self, p: PlacedProbe) -> None:
        """Add a probe, which hits call from `publish` on."""
        self.children.join(p)
        self._is_outdated = True

    def leave(self, p: PlacedProbe) -> None:
        """Remove a probe, which hits may call until `publish`."""
        self.children.leave(p)
        retired.append((p.native, p.codes))
        self._is_outdated = True

    def publish(self) -> None:
        """Let hits run the present children. Which of them are enabled, hits read from the children themselves."""
        if self._is_outdated:
            retired.append(self._list)
            self._list = self.children.native_list()
            self.record.children = ctypes.addressof(self._list)
            self._is_outdated = False

    # -- the text -----------------------------------------------------------------------------------------------

    def write_breakpoint(self) -> None:
        """Arm a place that is not an ftrace location."""
        patching.write(self.text, self.address, patching.INT3)

    def write_original(self) -> None:
        """Remove the breakpoint. If another party has overwritten it, the text is left alone."""
        if ctypes.string_at(self.address, 1) == patching.INT3:
            patching.write(self.text, self.address, self.original[:1])


def describe_emulated(record: Any, emulation: Emulation) -> None:
    record.execution = EMULATE
    to = record.emulated
    to.operation, to.condition, to.width = emulation.operation, emulation.condition, emulation.width
    to.register, to.immediate, to.target = register_word(emulation.register), emulation.immediate, emulation.target
    operand = emulation.operand
    if operand is not None:
        to.operand.base, to.operand.index = (
            NO_REGISTER if number is None else register_word(number) for number in (operand.base, operand.index)
        )
        to.operand.scale, to.operand.width, to.operand.segment = operand.scale, operand.width, operand.segment
        to.operand.displacement = operand.displacement % (1 << 64)


_nobody = Children().native_list()
"""The child list of a place that has had no probe yet."""


def between(start: int, end: int) -> list[Place]:
    """Every place in [start, end), ascending."""
    first = bisect_left(_addresses, start)
    last = bisect_left(_addresses, end, first)
    return [places[address] for address in _addresses[first:last]] if first < last else []


def original_text(address: int, size: int) -> bytes:
    """The text as it would be without kprobes and ftrace."""
    return locations.original_text(tracer().table, address, size)


def _restore_in(address: int, code: bytearray) -> None:
    """Undo in `code`, which was read at `address`, what kprobes have written."""
    for place in reversed(between(address - 15, address + len(code))):
        if place.is_written:
            locations.overlay(code, place.address - address, place.original[:1])
            locations.overlay(code, place.address - address, place.covered)


hooks.overlays.add(_restore_in)


def release_text(text: TextMapping) -> None:
    """The mapping is about to be freed: free its slots."""
    cache = _caches.pop(text, None)
    if cache is not None:
        cache.close()


def settle() -> None:
    """Wait until no other thread is in an unregistered handler, then free the memory in `retired`."""
    with patching.kprobe_mutex:
        replaced = list(retired)
        retired.clear()
    if not tracer().runtime.quiesce():
        with patching.kprobe_mutex:
            retired.extend(replaced)
