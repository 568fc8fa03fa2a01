"""Handlers before and after an instruction, with the messages of the kernel's kprobe sample.

python examples/kprobe_example.py
python examples/kprobe_example.py --symbol vfs_read --offset 5
python examples/kprobe_example.py --symbol func_sum --program examples/prog.ll --call main 3
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import sample_program

from kprobes import kprobe, register_kprobe, unregister_kprobe


class Sample:
    """The sample's parameters and its kprobe. `write` is called with every line."""

    def __init__(self, symbol: str, offset: int = 0, write: Callable[[str], Any] = print) -> None:
        self.kp = kprobe(
            symbol_name=symbol, offset=offset, pre_handler=self.handler_pre, post_handler=self.handler_post
        )
        self.write = write

    def handler_pre(self, p: kprobe, regs: Any) -> int:
        """Called just before the probed instruction is executed."""
        where = f"<{p.symbol_name}> p->addr = {p.addr:#x}"
        self.write(f"handler_pre: {where}, ip = {regs.ip:x}, flags = {regs.flags:#x}")
        return 0

    def handler_post(self, p: kprobe, regs: Any, _flags: int) -> None:
        """Called just after the probed instruction has been executed."""
        self.write(f"handler_post: <{p.symbol_name}> p->addr = {p.addr:#x}, flags = {regs.flags:#x}")

    def kprobe_init(self) -> bool:
        """Register. Returns whether that succeeded."""
        try:
            register_kprobe(self.kp)
        except OSError as error:
            self.write(f"kprobe_init: register_kprobe failed, returned {-(error.errno or 0)}")
            return False
        self.write(f"kprobe_init: Planted kprobe at {self.kp.addr:#x}")
        return True

    def kprobe_exit(self) -> None:
        """Unregister."""
        unregister_kprobe(self.kp)
        self.write(f"kprobe_exit: kprobe at {self.kp.addr:#x} unregistered")


def main(words: Sequence[str] | None = None) -> int:
    """Load the program, register, call, unregister. Returns the exit status: 1 if one of these failed."""
    parser = argparse.ArgumentParser(prog="python examples/kprobe_example.py", description=__doc__.split("\n")[0])
    parser.add_argument("--symbol", default="do_sys_open", help="the function to probe (%(default)s)")
    parser.add_argument("--offset", type=lambda text: int(text, 0), default=0, help="bytes from its beginning (0)")
    sample_program.add_arguments(parser)
    given = parser.parse_args(words)
    try:
        call = sample_program.prepared_call(given)
    except (OSError, LookupError, ValueError) as error:
        print(f"kprobe_example: {error}", file=sys.stderr)
        return 1
    sample = Sample(given.symbol, given.offset)
    if not sample.kprobe_init():
        return 1
    try:
        call()
    finally:
        sample.kprobe_exit()
    return 0


if __name__ == "__main__":
    sys.exit(main())
