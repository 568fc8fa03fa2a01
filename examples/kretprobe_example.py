"""Durations and results of a function, with the messages of the kernel's kretprobe sample.

python examples/kretprobe_example.py
python examples/kretprobe_example.py --func func_sum --program examples/prog.ll --call main 3
"""

from __future__ import annotations

import argparse
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import sample_program

from kprobes import kretprobe, kretprobe_instance, register_kretprobe, unregister_kretprobe

STAMP = struct.Struct("q")
"""The data of each call: the time of its entry, in nanoseconds."""


class Sample:
    """The sample's function and its kretprobe, for up to 20 calls at once.

    Calls in threads of `skipped` are ignored, as the kernel's sample ignores those of kernel threads. `write` is called with
    every line.
    """

    def __init__(self, func: str, skipped: Sequence[int] = (), write: Callable[[str], Any] = print) -> None:
        self.rp = kretprobe(
            symbol_name=func,
            handler=self.ret_handler,
            entry_handler=self.entry_handler,
            data_size=STAMP.size,
            maxactive=20,
        )
        self.func, self.skipped, self.write = func, skipped, write

    def entry_handler(self, ri: kretprobe_instance, regs: Any) -> int:
        """Store the time. Returns 1 to ignore the return of this call."""
        if threading.get_native_id() in self.skipped:
            return 1
        assert ri.data is not None
        STAMP.pack_into(ri.data, 0, time.monotonic_ns())
        return 0

    def ret_handler(self, ri: kretprobe_instance, regs: Any) -> int:
        """Print the result and the duration."""
        now = time.monotonic_ns()
        assert ri.data is not None
        (entered,) = STAMP.unpack_from(ri.data)
        self.write(f"ret_handler: {self.func} returned {regs.ax} and took {now - entered} ns to execute")
        return 0

    def kretprobe_init(self) -> bool:
        """Register. Returns whether that succeeded."""
        try:
            register_kretprobe(self.rp)
        except OSError as error:
            self.write(f"kretprobe_init: register_kretprobe failed, returned {-(error.errno or 0)}")
            return False
        self.write(f"kretprobe_init: Planted return probe at {self.func}: {self.rp.kp.addr:#x}")
        return True

    def kretprobe_exit(self) -> None:
        """Unregister, and print how many calls were missed because 20 were in progress."""
        unregister_kretprobe(self.rp)
        self.write(f"kretprobe_exit: kretprobe at {self.rp.kp.addr:#x} unregistered")
        self.write(f"kretprobe_exit: Missed probing {self.rp.nmissed} instances of {self.func}")


def main(words: Sequence[str] | None = None) -> int:
    """Load the program, register, call, unregister. Returns the exit status: 1 if one of these failed."""
    parser = argparse.ArgumentParser(prog="python examples/kretprobe_example.py", description=__doc__.split("\n")[0])
    parser.add_argument("--func", default="do_sys_open", help="the function to probe (%(default)s)")
    sample_program.add_arguments(parser)
    given = parser.parse_args(words)
    try:
        call = sample_program.prepared_call(given)
    except (OSError, LookupError, ValueError) as error:
        print(f"kretprobe_example: {error}", file=sys.stderr)
        return 1
    sample = Sample(given.func)
    if not sample.kretprobe_init():
        return 1
    try:
        call()
    finally:
        sample.kretprobe_exit()
    return 0


if __name__ == "__main__":
    sys.exit(main())
