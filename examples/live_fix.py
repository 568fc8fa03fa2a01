"""Fix a bug in a running function without changing its code, by a probe that changes the execution path.

`average` divides by the number of values, which may be 0. A pre_handler on the division checks the
divisor; if it is 0, the handler sets the result and returns 1, so that the division is not executed.

    python examples/live_fix.py
"""

from __future__ import annotations

import sys
from typing import Any

import capstone

import sandbox
from kprobes import KPROBE_FLAG_DISABLED, enable_kprobe, kprobe, register_kprobe, unregister_kprobe

PROGRAM = """
define i64 @average(i64 %total, i64 %count) noinline optnone {
  %result = udiv i64 %total, %count
  ret i64 %result
}
"""


def find_division(address: int, code: bytes) -> tuple[int, int]:
    """Offset of the `div` in a function's code, and its length, in bytes. Raises LookupError if there is none."""
    for instruction in capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64).disasm(code, address):
        if instruction.mnemonic == "div":
            return instruction.address - address, instruction.size
    raise LookupError("no division in this function")


def mended(module: Any) -> kprobe:
    """A disabled probe; once enabled, it makes the average of no values 0."""
    symbol = module.symbol("average")
    code = module.texts[0].read(symbol.address, symbol.size)
    offset, length = find_division(symbol.address, code)

    def pre_handler(p: kprobe, regs: Any) -> int:
        if regs.si:
            return 0
        regs.ax = 0
        regs.ip = (p.addr or 0) + length
        return 1

    # A post_handler prevents jump optimisation, under which changes of ip would be ignored (KP-67).
    return kprobe(
        addr=symbol.address + offset,
        pre_handler=pre_handler,
        post_handler=lambda *_: None,
        flags=KPROBE_FLAG_DISABLED,
    )


def attempt(module: Any, total: int, count: int) -> str:
    """Call `average`; the result or the fault, as text."""
    try:
        return f"average({total}, {count}) = {module['average'](total, count)}"
    except sandbox.SandboxFault as fault:
        return f"average({total}, {count}) faulted: {str(fault).splitlines()[0]}"


def main() -> int:
    """Call `average` before, during and after the fix."""
    module = sandbox.load(PROGRAM, name="averages", opt=0)
    probe = mended(module)
    register_kprobe(probe)
    print(attempt(module, 12, 4), attempt(module, 12, 0), sep="\n")
    enable_kprobe(probe)
    print("mended:", attempt(module, 12, 4), attempt(module, 12, 0), sep="\n")
    unregister_kprobe(probe)
    return 0


if __name__ == "__main__":
    sys.exit(main())
