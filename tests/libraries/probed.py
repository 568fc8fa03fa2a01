"""One run of regression tests in this process, with or without probes; prints a JSON object.

python -m tests.libraries.probed test_zlib,test_gzip libz.so.1 [probe]
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"  (the decorator fills in what handlers take)
# ruff: noqa: N802  (unittest names its methods so)

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import sys
import time
import unittest
from collections import Counter
from collections.abc import Iterator
from typing import Any

import fprobe
from ftrace.runtime import runtime
from ftrace.sites.detoured import DetouredBlock
from ftrace.tracer import tracer
from sandbox.native import i32, u64
from sandbox.symbols.process_text import library_called

seen = fprobe.Array(u64, 2)


@fprobe.native
def enters(fp, ip, ret_ip, regs, data) -> i32:
    seen[0] += 1
    return 0


@fprobe.native
def leaves(fp, ip, ret_ip, regs, data):
    seen[1] += 1


class _Result(unittest.TestResult):
    """The outcome of each test by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}

    def stopTest(self, test: Any) -> None:
        self.outcomes.setdefault(test.id(), "ok")
        super().stopTest(test)

    def addSkip(self, test: Any, reason: str) -> None:
        self.outcomes[test.id()] = "skipped"
        super().addSkip(test, reason)

    def addError(self, test: Any, err: Any) -> None:
        self.outcomes[test.id()] = "error"
        super().addError(test, err)

    def addFailure(self, test: Any, err: Any) -> None:
        self.outcomes[test.id()] = "failure"
        super().addFailure(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.outcomes[test.id()] = "failure"
        super().addSubTest(test, subtest, err)


def run(names: list[str]) -> dict[str, str]:
    """The outcomes of the tests of these modules of CPython's package `test`."""
    result = _Result()
    for name in names:
        unittest.defaultTestLoader.loadTestsFromName(f"test.{name}").run(result)
    return result.outcomes


@contextlib.contextmanager
def probed(library: str, figures: dict[str, Any]) -> Iterator[None]:
    """With handlers at both ends of every function of the library; what was counted is in `figures`."""
    started = time.perf_counter()
    probe = fprobe.attach(f"{library}:*", entry=enters, exit=leaves).attach()
    figures["attach_s"] = time.perf_counter() - started
    try:
        yield
    finally:
        left, entered, pending = seen[1], seen[0], pending_calls(library)
        probe.detach()
        figures |= {"functions": len(locations(library)), "skipped": probe.skipped, "path": path_of(library)}
        figures |= {"counts": probe.counts._asdict(), "entered": entered, "left": left, "pending": pending}
        figures |= {"ways": ways(library), "places": places(library)}


def pending_calls(library: str) -> list[str]:
    """The functions of the library that have been entered and have not returned, in any thread."""
    names = {
        address: name for block in _blocks(library) for address, name in zip(block.addresses, block.names, strict=True)
    }
    return [names[ip] for ip in runtime().shadow_ips() if ip in names]


def path_of(library: str) -> str:
    """Its file."""
    return str(library_called(library).path)


def places(library: str) -> dict[int, str]:
    """How each function is patched, or why it is not, by its address in the file."""
    base = library_called(library).base
    return {
        address - base: block.mechanisms[index].value if index in block.mechanisms else block.reason(index)
        for block in _blocks(library)
        for index, address in enumerate(block.addresses)
    }


def locations(library: str) -> list[int]:
    """Those that have been made."""
    return [index for block in _blocks(library) for index in block.mechanisms]


def ways(library: str) -> dict[str, int]:
    """How many functions are patched in which way."""
    return dict(Counter(way.value for block in _blocks(library) for way in block.mechanisms.values()))


def _blocks(library: str) -> list[DetouredBlock]:
    return [b for b in tracer().table.of_images if isinstance(b, DetouredBlock) and b.name == library]


def main() -> None:
    names, library = sys.argv[1].split(","), sys.argv[2]
    output, sys.stdout = os.dup(1), io.StringIO()
    ctypes.CDLL(library)
    figures: dict[str, Any] = {}
    with probed(library, figures) if "probe" in sys.argv[3:] else contextlib.nullcontext():
        figures["outcomes"] = run(names)
    os.write(output, json.dumps(figures).encode())


if __name__ == "__main__":
    main()
