"""Running a piece of machine code from a given state of all registers, and what it leaves."""

from __future__ import annotations

import ctypes

from sandbox.memory import mappings, pages
from sandbox.native import Unit, native, u64
from sandbox.native.native_image import NativeImage

REGISTERS = ("ax", "cx", "dx", "bx", "sp", "bp", "si", "di", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15")
"""By their numbers in instructions."""
FLAGS, WHERE = 16, 17
"""Behind the registers in a state: the flags, and at which of the two ends the code has arrived."""
_STATUS_FLAGS = 0x8D5
STACK_WORDS, RED_ZONE = 64, 128

_NAMES = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *[f"r{number}" for number in range(8, 16)])
_LOADS = "\n".join(f"    mov {8 * n}(%rsi), %{name}" for n, name in enumerate(_NAMES) if name != "rsi")
_STORES = "\n".join(f"    mov %{name}, {8 * n}(%rax)" for n, name in enumerate(_NAMES) if name not in ("rax", "rsp"))
_CALLEE_SAVED = ("rbx", "rbp", "r12", "r13", "r14", "r15")

_ASSEMBLY = f"""
    .data
    .p2align 3
machine_sp: .quad 0
machine_state: .quad 0
machine_code: .quad 0
machine_end_sp: .quad 0
    .text
# machine_run(code, state): load every register and the flags from the state and jump to the code.
    .globl machine_run
machine_run:
{chr(10).join(f"    push %{name}" for name in _CALLEE_SAVED)}
    mov %rsp, machine_sp(%rip)
    mov %rsi, machine_state(%rip)
    mov %rdi, machine_code(%rip)
    push {8 * FLAGS}(%rsi)
    popfq
{_LOADS}
    mov 48(%rsi), %rsi
    jmp *machine_code(%rip)
# Where the code arrives: at the end it falls through to, or at the one it branches to.
    .globl machine_end
machine_end:
    mov %rsp, machine_end_sp(%rip)
    mov machine_sp(%rip), %rsp
    pushfq
    push $0
    jmp 1f
    .globl machine_other_end
machine_other_end:
    mov %rsp, machine_end_sp(%rip)
    mov machine_sp(%rip), %rsp
    pushfq
    push $1
1:  push %rax
    mov machine_state(%rip), %rax
{_STORES}
    pop (%rax)
    pop {8 * WHERE}(%rax)
    pop {8 * FLAGS}(%rax)
    mov machine_end_sp(%rip), %rcx
    mov %rcx, 32(%rax)
{chr(10).join(f"    pop %{name}" for name in reversed(_CALLEE_SAVED))}
    cld
    ret
"""


@native
def machine_nothing(x: u64) -> u64:
    return x


class Machine:
    """`text`: room for code. `data`: the address of a page within its reach. `end`, `other_end`: where code may arrive."""

    def __init__(self) -> None:
        self._image = NativeImage.of(Unit("machine", (machine_nothing,), assembly=_ASSEMBLY, bounded=False))
        self.text = mappings.allocate_text((1 << 40, 1 << 40), 4 * mappings.PAGE, "machine")
        self.data = mappings.reserve(mappings.PAGE, (self.text.base, self.text.end))
        self.end, self.other_end = self._image.address("machine_end"), self._image.address("machine_other_end")
        self.stack = mappings.reserve(mappings.PAGE)

    def put(self, address: int, code: bytes) -> None:
        """Write code."""
        self.text.write(address, code)
        pages.sync_cores()

    def go_to(self, address: int, target: int) -> None:
        """Put a jump to `target`, however far, which touches nothing."""
        self.put(address, bytes.fromhex("ff2500000000") + target.to_bytes(8, "little"))

    def run(self, code: int, registers: dict[str, int], flags: int, memory_bytes: bytes) -> tuple[object, ...]:
        """What the code makes of registers, flags, and of the data page and the stack, which are set up first."""
        state = (ctypes.c_uint64 * 18)()
        ctypes.memset(self.stack, 0x5A, mappings.PAGE)
        ctypes.memmove(self.data, memory_bytes, len(memory_bytes))
        sp = self.stack + mappings.PAGE - 8 * STACK_WORDS
        for number, name in enumerate(REGISTERS):
            state[number] = registers.get(name, 0x1000_0000 + number)
        state[4] = sp
        for slot, value in enumerate(registers.get("stack", ()), -16):  # type: ignore[arg-type]
            ctypes.c_uint64.from_address(sp + 8 * slot).value = value
        state[FLAGS] = flags & _STATUS_FLAGS | 0x202
        self._image.call("machine_run", code, ctypes.addressof(state))
        state[FLAGS] &= _STATUS_FLAGS
        stack = ctypes.string_at(sp - RED_ZONE, RED_ZONE + 8 * STACK_WORDS)
        return (*state, ctypes.string_at(self.data, len(memory_bytes)), stack)
