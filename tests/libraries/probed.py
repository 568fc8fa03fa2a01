"""One run of tests in this process, with or without probes; prints a JSON object.

python -m tests.libraries.probed libz.so.1=test_zlib [probe]
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"  (the decorator fills in what handlers take)

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import importlib
import io
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import fprobe
from ftrace.core.runtime import runtime
from ftrace.core.sites.detoured import DetouredBlock
from ftrace.core.tracer import tracer
from sandbox.images.process_text import library_called
from sandbox.native import i32, u64
from sandbox.symbols.libraries import libraries
from tests.libraries.suites import Suite, suite_called

seen = fprobe.Array(u64, 2)


@fprobe.native
def enters(fp, ip, ret_ip, regs, data) -> i32:
    seen[0] += 1
    return 0


@fprobe.native
def leaves(fp, ip, ret_ip, regs, data):
    seen[1] += 1


def load(suite: Suite) -> list[str]:
    """Load the libraries of the suite; their names."""
    if suite.package:
        importlib.import_module(suite.package)
    else:
        for name in suite.libraries:
            ctypes.CDLL(name)
    names = [library.name for library in libraries()]
    return [name for pattern in suite.libraries for name in fnmatch.filter(names, pattern)]


@contextlib.contextmanager
def probed(names: list[str], figures: dict[str, Any]) -> Iterator[None]:
    """With handlers at both ends of every function of the libraries; what was counted is in `figures`."""
    attach_s, probes = {}, {}
    for name in names:
        started = time.process_time()
        probes[name] = fprobe.attach(f"{name}:*", entry=enters, exit=leaves).attach()
        attach_s[name] = time.process_time() - started
    try:
        yield
    finally:
        counts = {name: probe.counts._asdict() for name, probe in probes.items()}  # detaching calls libffi
        left, entered, pending = seen[1], seen[0], pending_calls(names)
        for probe in probes.values():
            probe.detach()
        figures |= {"entered": entered, "left": left, "pending": pending}
        figures["libraries"] = {
            name: {
                "attach_s": attach_s[name],
                "functions": len(locations(name)),
                "skipped": probe.skipped,
                "path": str(library_called(name).path),
                "counts": counts[name],
                "ways": ways(name),
                "places": places(name),
            }
            for name, probe in probes.items()
        }


def pending_calls(libraries: list[str]) -> list[str]:
    """The functions of the libraries that have been entered and have not returned, in any thread."""
    blocks = [block for library in libraries for block in _blocks(library)]
    names = {address: name for block in blocks for address, name in zip(block.addresses, block.names, strict=True)}
    return [names[ip] for ip in runtime().shadow_ips() if ip in names]


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
    _, suite = suite_called(sys.argv[1])
    output, sys.stdout = os.dup(1), io.StringIO()
    names = load(suite)
    figures: dict[str, Any] = {"python": platform.python_version()}
    with probed(names, figures) if "probe" in sys.argv[2:] else contextlib.nullcontext():
        started = time.process_time()
        figures["outcomes"] = suite.outcomes(suite.tests)
        figures["tests_s"] = time.process_time() - started
    os.write(output, json.dumps(figures).encode())


if __name__ == "__main__":
    main()
