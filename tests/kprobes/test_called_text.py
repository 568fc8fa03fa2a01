"""What a kretprobe's function calls is examined, as far as there is text."""

from __future__ import annotations

import ctypes
import mmap

from isolation import isolated

PAGE = mmap.PAGESIZE
READ_WRITE, NOTHING = 3, 0


def _mapped(pages):
    from sandbox.memory import mappings

    return mappings.mmap_at(None, pages * PAGE, READ_WRITE, mappings.MAP_PRIVATE | mappings.MAP_ANONYMOUS)


@isolated
def test_bytes_that_look_like_a_call_may_lead_to_where_nothing_is_mapped():
    from kprobes.jump.functions import return_refusal
    from sandbox.memory import mappings

    start = _mapped(2)
    # movabs $imm,%rax, with the bytes of a call of the second page; ret
    code = b"\x48\xb8\xe8" + (PAGE + 0x100 - 7).to_bytes(4, "little") + b"\0\0\0\xc3"
    ctypes.memmove(start, code, len(code))
    mappings.mprotect(start + PAGE, PAGE, NOTHING)
    assert return_refusal(start, start + len(code)) == ""


@isolated
def test_a_called_function_that_ends_with_the_text_is_examined():
    from kprobes.jump.functions import return_refusal
    from sandbox.memory import mappings

    start = _mapped(2)
    target = start + PAGE - 16
    # add %rax,%rsp, as what copies stacks has it, near the end of what is mapped
    ctypes.memmove(target, b"\x48\x01\xc4\xc3", 4)
    ctypes.memmove(start, b"\xe8" + (target - start - 5).to_bytes(4, "little") + b"\xc3", 6)
    mappings.mprotect(start + PAGE, PAGE, NOTHING)
    assert return_refusal(start, start + 6) == "it may return twice: what it calls at +0x0 copies stacks"


@isolated
def test_other_code_that_comes_there_is_examined_itself():
    """Nothing tells when other compilers, or the dynamic loader, put code where other code was."""
    from kprobes.jump import functions
    from sandbox.symbols.libraries import libraries

    start, size = _mapped(1), 64
    caller, reader = b"\xe8\x1b\0\0\0\xc3", b"\x48\x8b\x04\x24\xc3"  # call start + 32; ret / mov (%rsp),%rax; ret
    ctypes.memmove(start, caller.ljust(32, b"\x90") + b"\x48\x01\xc4\xc3", 36)
    assert "copies stacks" in functions.return_refusal(start, start + size // 2)
    ctypes.memmove(start, reader, len(reader))
    assert "reads its own return address" in functions.return_refusal(start, start + size // 2)
    assert functions.function_around(start, start, start + size).instruction_at(start + 5) != b"\x90"
    ctypes.memmove(start, caller.ljust(size, b"\x90"), size)
    assert functions.return_refusal(start, start + size // 2) == ""
    assert functions.function_around(start + 40, start, start + size).instruction_at(start) == caller[:5]

    ctypes.memmove(start + 32, b"\x48\x01\xc4\xc3", 4)  # only what is called changes: a library has been unloaded
    unloaded = _a_library_is_unloaded()
    assert "copies stacks" in functions.return_refusal(start, start + size // 2)
    assert unloaded not in [library.name for library in libraries()]


def _a_library_is_unloaded():
    import _ctypes

    from sandbox.symbols.libraries import libraries

    names = {library.name for library in libraries()}
    handle = ctypes.CDLL("libm.so.6" if "libm.so.6" not in names else "libresolv.so.2")
    (name,) = {library.name for library in libraries()} - names
    _ctypes.dlclose(handle._handle)
    return name
