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
