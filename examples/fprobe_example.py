"""Handlers at the entry and return of chosen functions, with the messages of the kernel's samples/fprobe.

    python examples/fprobe_example.py --symbol 'vfs_*' --nosymbol vfs_fsync
    python examples/fprobe_example.py --symbol func_sum,func_square --program examples/prog.ll --call main 3

A symbol with a `*` is a pattern, from which `--nosymbol` is excluded. Commas separate several names.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import sample_program

import fprobe
import sandbox

BACKTRACE_DEPTH = 16
_INDENT = " " * 24
describe = sandbox.symbol_table.describe


class Sample:
    """The sample's parameters, its fprobe, and its hit count.

    `stackdump`: print the stack of each hit. `write` is called with every line.
    """

    def __init__(self, symbol: str, nosymbol: str = "", stackdump: bool = False, write: Any = print) -> None:
        self.symbol, self.nosymbol, self.stackdump = symbol, nosymbol, stackdump
        self.write = write
        self.nhit = 0
        self.probe = fprobe.fprobe(self.sample_entry_handler, self.sample_exit_handler)

    def sample_entry_handler(self, fp: Any, ip: int, ret_ip: int, regs: Any, data: Any) -> int:
        """Print which function is entered."""
        self.write(f"sample_entry_handler: Enter <{describe(ip)}> ip = {ip:#x}")
        self.nhit += 1
        if self.stackdump:
            self.show_backtrace()
        return 0

    def sample_exit_handler(self, fp: Any, ip: int, ret_ip: int, regs: Any, data: Any) -> None:
        """Print which function returns, and where to."""
        came, goes = describe(ip), describe(ret_ip)
        self.write(f"sample_exit_handler: Return from <{came}> ip = {ip:#x} to rip = {ret_ip:#x} ({goes})")
        self.nhit += 1
        if self.stackdump:
            self.show_backtrace()

    def show_backtrace(self) -> None:
        """Print the callers, innermost first."""
        for address in fprobe.stack_trace_save(BACKTRACE_DEPTH):
            self.write(f"{_INDENT} {describe(address)}")

    def fprobe_init(self) -> bool:
        """Register. Returns whether that succeeded."""
        try:
            self._register()
        except OSError as error:
            self.write(f"fprobe_init: register_fprobe failed, returned {-(error.errno or 0)}")
            return False
        self.write(f"fprobe_init: Planted fprobe at {self.symbol}")
        return True

    def _register(self) -> None:
        if "*" in self.symbol:
            fprobe.register_fprobe(self.probe, self.symbol, self.nosymbol or None)
        elif "," not in self.symbol:
            fprobe.register_fprobe_syms(self.probe, [self.symbol])
        else:
            names = self.symbol.split(",")
            self.write(f"fprobe_init: {len(names)} symbols found")
            fprobe.register_fprobe_syms(self.probe, names)

    def fprobe_exit(self) -> None:
        """Unregister, and print hits and misses."""
        fprobe.unregister_fprobe(self.probe)
        counts = f"{self.nhit} times hit, {self.probe.nmissed} times missed"
        self.write(f"fprobe_exit: fprobe at {self.symbol} unregistered. {counts}")


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python examples/fprobe_example.py", description=__doc__.split("\n")[0])
    parser.add_argument("--symbol", default="vfs_read", help="the function, pattern or names to probe (%(default)s)")
    parser.add_argument("--nosymbol", default="", help="a pattern of functions to leave out")
    parser.add_argument("--stackdump", action="store_true", help="print the stack of each hit")
    sample_program.add_arguments(parser)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Load the program, register, call, unregister. Returns the exit status: 1 if one of these failed."""
    given = arguments(words)
    try:
        call = sample_program.prepared_call(given)
    except (OSError, LookupError, ValueError) as error:
        print(f"fprobe_example: {error}", file=sys.stderr)
        return 1
    return run(Sample(given.symbol, given.nosymbol, given.stackdump), call)


def run(sample: Sample, call: Callable[[], Any]) -> int:
    """Probe one call."""
    if not sample.fprobe_init():
        return 1
    try:
        call()
    finally:
        sample.fprobe_exit()
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it
    sys.exit(main())
