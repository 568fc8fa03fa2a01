"""The code that a new thread in another process runs if that has no Python: it brings an interpreter and runs source with it.

It begins as that of `sandbox.x86_64.remote_thread`, and ends as that does. In between the pthread takes a table of descriptors of
its own, delays forks (`sandbox.x86_64.fork_gate`), loads a shared libpython, starts it without touching locale, standard streams,
signals or environment, runs the source, and gives the GIL up. What fails is reported in the context as the source itself would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sandbox.x86_64 import fork_gate
from sandbox.x86_64.remote_thread import (
    CANCELLED,
    GATE,
    PAGE,
    SOURCE,
    STATUS,
    Places,
    Room,
    begin,
    call,
    create,
    end,
    number,
)
from sandbox.x86_64.syscalls import SYS_CLOSE_RANGE, SYS_MMAP, SYS_MPROTECT

FUNCTIONS = ("dlsym", "dlerror", "snprintf", "usleep", "__register_atfork")
"""Of the C library, besides those of `remote_thread`."""
_API = (
    *("PyPreConfig_InitIsolatedConfig", "Py_PreInitialize", "PyConfig_InitIsolatedConfig", "PyConfig_SetBytesString"),
    *("Py_InitializeFromConfig", "PyConfig_Clear", "PyRun_SimpleString", "PyEval_SaveThread"),
)
_NOW_GLOBAL = 0x102
"""RTLD_NOW | RTLD_GLOBAL: Python's extension modules have no libpython of their own to look symbols up in."""
_UNSHARE = 2
_READ_WRITE, _READ_EXECUTE, _PRIVATE_ANONYMOUS = 3, 5, 0x22
_RAX, _RDI, _RSI, _RDX = b"\x44\xc0", b"\x7c\xc7", b"\x74\xc6", b"\x54\xc2"
"""Registers as the operands of a load, and of an addition."""
_UTF8_MODE = 28
"""Offset in PyPreConfig."""
_ERROR_MESSAGE = 16
"""Offset in PyStatus, whose first number is 0 if all is well."""
_STATUS_SIZE, _PRECONFIG_SIZE, _CONFIG_SIZE = 32, 64, 1024
_LONGEST, _TAKEN_WITHIN = 1900, 5000
FAILED = b"E"
"""The first byte of the report of a failure."""


class Offsets(NamedTuple):
    """Of members of PyConfig."""

    site_import: int
    home: int


_OF_3_14 = Offsets(176, 304)
OFFSETS = {
    10: Offsets(152, 256),
    11: Offsets(168, 280),
    12: Offsets(176, 288),
    13: Offsets(176, 296),
    14: _OF_3_14,
    15: _OF_3_14,
}
"""By minor version of Python."""


class Data(NamedTuple):
    """What follows the source in the mapping. `at`: offsets from the source's beginning."""

    contents: bytes
    at: Mapping[str, int]


def data(source: bytes, library: bytes, home: bytes) -> Data:
    """The source with what the code needs besides: names, and room for the interpreter's structures."""
    contents, at = bytearray(source), {}
    texts = {"library": library, "home": home, "format": b"%s", **{name: name.encode() for name in _API}}
    for name, text in texts.items():
        at[name] = len(contents)
        contents += text + b"\0"
    at["gate"] = len(contents)
    contents += fork_gate.CODE
    rooms = {"status": _STATUS_SIZE, "preconfig": _PRECONFIG_SIZE, "config": _CONFIG_SIZE}
    for name, size in {**rooms, **{f"*{name}": 8 for name in _API}}.items():
        contents += bytes(-len(contents) % 16)
        at[name] = len(contents)
        contents += bytes(size)
    return Data(bytes(contents), at)


class _Assembly:
    """Machine code with jumps to its end and to its two failures. r12: the context."""

    def __init__(self, addresses: Mapping[str, int], at: Mapping[str, int]) -> None:
        self._addresses = addresses
        self._at = at
        self.code = bytearray()
        self._jumps: list[tuple[int, str]] = []
        self._labels: dict[str, int] = {}

    def lea(self, register: str, name: str, offset: int = 0) -> None:
        """The address of some data into rdi, rsi, rdx or rcx."""
        of_register = {"rdi": 0xBC, "rsi": 0xB4, "rdx": 0x94, "rcx": 0x8C}[register]
        self.code += b"\x49\x8d" + bytes([of_register]) + b"\x24" + number(SOURCE + self._at[name] + offset)

    def libc(self, name: str) -> None:
        """Call a function of the C library."""
        self.code += call(self._addresses[name])

    def api(self, name: str) -> None:
        """Call a function of the interpreter's: xor %eax,%eax; call *(r12)"""
        self.code += b"\x31\xc0\x41\xff\x94\x24" + number(SOURCE + self._at[f"*{name}"])

    def checked(self, name: str) -> None:
        """The same of one that returns a PyStatus, whose address is in rdi: cmpl $0, status; jne"""
        self.lea("rdi", "status")
        self.api(name)
        self.code += b"\x41\x83\xbc\x24" + number(SOURCE + self._at["status"]) + b"\0"
        self.jump(b"\x0f\x85", "refused")

    def set(self, name: str, offset: int, value: int) -> None:
        """movl $value, offset(data)"""
        self.code += b"\x41\xc7\x84\x24" + number(SOURCE + self._at[name] + offset) + number(value)

    def jump(self, opcode: bytes, label: str) -> None:
        """A jump with a displacement of 32 bits."""
        self.code += opcode + bytes(4)
        self._jumps.append((len(self.code), label))

    def system_call(self, which: int) -> None:
        """mov $which,%eax; syscall"""
        self.code += b"\xb8" + number(which) + b"\x0f\x05"

    def gate(self, register: bytes, offset: int) -> None:
        """An address in the fork gate: mov GATE(%r12),register; add $offset,register"""
        self.code += b"\x49\x8b" + bytes([register[0]]) + b"\x24" + bytes([GATE])
        self.code += b"\x48\x81" + bytes([register[1]]) + number(offset)

    def label(self, name: str) -> None:
        """The place that jumps go to."""
        self._labels[name] = len(self.code)

    def linked(self) -> bytes:
        """The code, with its jumps."""
        for at, label in self._jumps:
            self.code[at - 4 : at] = number(self._labels[label] - at)
        return bytes(self.code)


def code(addresses: Mapping[str, int], at: Mapping[str, int], offsets: Offsets, room: Room, places: Places) -> bytes:
    """The code for the functions at `addresses` and the data `at` these offsets. Otherwise as `remote_thread.code`."""
    made = _Assembly(addresses, at)
    _take_own_descriptors(made)
    _make_gate(made)
    _load(made)
    _start(made, offsets)
    made.code += b"\x41\x83\x7c\x24" + bytes([CANCELLED]) + b"\0"  # cmpl $0, cancelled; jne
    made.jump(b"\x0f\x85", "give up")
    made.code += b"\x49\x8d\xbc\x24" + number(SOURCE)
    made.api("PyRun_SimpleString")
    made.label("give up")
    made.api("PyEval_SaveThread")
    made.jump(b"\xe9", "end")
    _report(made)
    made.label("end")
    made.code += b"\x49\x83\x7c\x24" + bytes([GATE]) + b"\0"  # cmpq $0, gate; je
    made.jump(b"\x0f\x84", "left")
    made.gate(_RAX, fork_gate.LEAVE)
    made.code += b"\xff\xd0"  # call *%rax
    made.label("left")
    body = begin(addresses) + b"\x53\x50" + made.linked() + b"\x58\x5b"  # push, pop: rbx, rax
    return create(addresses, places) + body + end(addresses["munmap"], room, places)


def _take_own_descriptors(made: _Assembly) -> None:
    """close_range(0, ~0, CLOSE_RANGE_UNSHARE): from then on the thread has a table of descriptors of its own, which is empty.

    Where Linux is older than 5.9 nothing changes.
    """
    made.code += b"\x31\xff\xbe" + number(-1) + b"\xba" + number(_UNSHARE)
    made.system_call(SYS_CLOSE_RANGE)


def _make_gate(made: _Assembly) -> None:
    """Map and register the fork gate, which stays, and enter it. Where there is no memory, there is none."""
    made.code += b"\x31\xff\xbe" + number(fork_gate.WHOLE) + b"\xba" + number(_READ_WRITE)
    made.code += b"\x41\xba" + number(_PRIVATE_ANONYMOUS) + b"\x49\xc7\xc0" + number(-1) + b"\x45\x31\xc9"
    made.system_call(SYS_MMAP)
    made.code += b"\x48\x3d" + number(-PAGE)  # cmp $-4096,%rax; ja
    made.jump(b"\x0f\x87", "no gate")
    made.code += b"\x49\x89\x44\x24" + bytes([GATE]) + b"\x48\x89\xc7"  # mov %rax,gate; mov %rax,%rdi
    made.lea("rsi", "gate")
    made.code += b"\xb9" + number(len(fork_gate.CODE)) + b"\xf3\xa4"  # rep movsb
    made.gate(_RDI, 0)
    made.code += b"\xbe" + number(PAGE) + b"\xba" + number(_READ_EXECUTE)
    made.system_call(SYS_MPROTECT)
    for register, offset in ((_RDI, fork_gate.PREPARE), (_RSI, fork_gate.PARENT), (_RDX, fork_gate.CHILD)):
        made.gate(register, offset)
    made.code += b"\x31\xc9"  # xor %ecx,%ecx: of no library that could be unloaded
    made.libc("__register_atfork")
    made.gate(_RAX, fork_gate.ENTER)
    made.code += b"\xff\xd0"
    made.label("no gate")


def _load(made: _Assembly) -> None:
    """Load the library, and find its functions. rbx: its handle."""
    made.lea("rdi", "library")
    made.code += b"\xbe" + number(_NOW_GLOBAL)
    made.libc("dlopen")
    made.code += b"\x48\x89\xc3\x48\x85\xc0"  # mov %rax,%rbx; test %rax,%rax; je
    made.jump(b"\x0f\x84", "not loaded")
    for name in _API:
        made.code += b"\x48\x89\xdf"  # mov %rbx,%rdi
        made.lea("rsi", name)
        made.libc("dlsym")
        made.code += b"\x48\x85\xc0"
        made.jump(b"\x0f\x84", "not loaded")
        made.lea("rcx", f"*{name}")
        made.code += b"\x48\x89\x01"  # mov %rax,(%rcx)


def _start(made: _Assembly, offsets: Offsets) -> None:
    """Start the interpreter, isolated from the program, and take the GIL."""
    made.lea("rdi", "preconfig")
    made.api("PyPreConfig_InitIsolatedConfig")
    made.set("preconfig", _UTF8_MODE, 1)
    made.lea("rsi", "preconfig")
    made.checked("Py_PreInitialize")
    made.lea("rdi", "config")
    made.api("PyConfig_InitIsolatedConfig")
    made.set("config", offsets.site_import, 0)
    made.lea("rsi", "config")
    made.lea("rdx", "config", offsets.home)
    made.lea("rcx", "home")
    made.checked("PyConfig_SetBytesString")
    made.lea("rsi", "config")
    made.checked("Py_InitializeFromConfig")
    made.lea("rdi", "config")
    made.api("PyConfig_Clear")


def _report(made: _Assembly) -> None:
    """Report why the library was not loaded, or the interpreter has not started; wait until that was read."""
    made.label("not loaded")
    made.libc("dlerror")
    made.code += b"\x48\x89\xc1\xeb\x08"  # mov %rax,%rcx; jmp over the next instruction
    made.label("refused")
    made.code += b"\x49\x8b\x8c\x24" + number(SOURCE + made._at["status"] + _ERROR_MESSAGE)  # mov status(%r12),%rcx
    made.code += b"\x49\x8d\xbc\x24" + number(STATUS + 1) + b"\xbe" + number(_LONGEST)
    made.lea("rdx", "format")
    made.libc("snprintf")
    made.code += b"\x41\xc6\x44\x24" + bytes([STATUS]) + FAILED + b"\xbb" + number(_TAKEN_WITHIN)  # mov $, %ebx
    loop = len(made.code)
    made.code += b"\x41\x80\x7c\x24" + bytes([STATUS]) + b"\0"  # cmpb $0, status; je
    made.jump(b"\x0f\x84", "end")
    made.code += b"\xbf" + number(1000)
    made.libc("usleep")
    made.code += b"\xff\xcb"  # dec %ebx; jne
    made.code += b"\x0f\x85" + number(loop - len(made.code) - 6)
