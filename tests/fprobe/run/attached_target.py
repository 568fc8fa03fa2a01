"""A program to attach to: threads that call zlib, and answers on its own state and text, one line for each line of input."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
import threading
import warnings
import zlib
from pathlib import Path

calls = [0, 0]
go = threading.Event()
go.set()


def work(number):
    while True:
        go.wait()
        zlib.compress(b"x" * 1000)
        calls[number] += 1
        threading.Event().wait(0.001)


def state():
    """What an attachment must leave as it was."""
    return {
        "path": sys.path,
        "modules": sorted(sys.modules),
        "meta_path": [type(each).__name__ for each in sys.meta_path],
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTRAP)],
        "native_handlers": re.search(r"SigCgt:\t(\w+)", Path("/proc/self/status").read_text())[1],
        "interval": sys.getswitchinterval(),
        "filters": list(map(str, warnings.filters)),
        "threads": [thread.name for thread in threading.enumerate()],
        "next": threading.Thread().name.rpartition("-")[0],
        "tasks": len(list(Path("/proc/self/task").iterdir())),
        "environment": dict(os.environ),
    }


def executable():
    """The spans of the code of libz and libc."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        if "x" in rights and ("/libz.so" in line or "/libc.so" in line):
            yield tuple(int(each, 16) for each in span.split("-"))


CODE = [*executable()]


def text():
    """A hash of what is executed there now."""
    digest = hashlib.sha256()
    with Path("/proc/self/mem").open("rb", 0) as memory:
        for start, end in CODE:
            memory.seek(start)
            digest.update(memory.read(end - start))
    return digest.hexdigest()


def block():
    """Block SIGTRAP in a thread for a while."""
    blocked = threading.Event()

    def run():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTRAP])
        blocked.set()
        threading.Event().wait(1)

    threading.Thread(target=run).start()
    blocked.wait()


def answer(word):
    if word == "state":
        return state()
    if word == "text":
        return text()
    if word == "stop":
        go.clear()
        threading.Event().wait(0.1)
        return sum(calls)
    if word == "calls":
        return sum(calls)
    if word == "block":
        block()
    if word == "start":
        calls[:] = [0, 0]
        go.set()
    return None


if __name__ == "__main__":
    for thread in range(2):
        threading.Thread(target=work, args=(thread,), daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(line.strip())), flush=True)
