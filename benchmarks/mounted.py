"""The mounted tree: what other programs wait for. Each sample has a process of its own, in a mount namespace of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.measure import Row, Sample

_UNSHARE = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
_ROUNDS = 3
_PROGRAM = "".join(
    f"define i32 @{name}(i32 %x) {{ %y = mul i32 %x, 2  ret i32 %y }}\n"
    for name in ["twice", *(f"f{n}" for n in range(500))]
)
_HEAD = f"""
import json, os, subprocess, sys, tempfile, threading, time
import sandbox
from fprobe.tracefs import mount, tracefs

program = sandbox.load({_PROGRAM!r}, name="prog")
top = tempfile.mkdtemp()
mounted = mount(top)

def seconds(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start

def sh(text):
    subprocess.run(["sh", "-c", text], cwd=top, check=True, stdout=subprocess.DEVNULL)

def client(text):
    done = subprocess.run([sys.executable, "-I", "-S", "-c", text, top], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)

REQUESTS = '''
import json, os, sys, time
fd, took = os.open(sys.argv[1] + "/tracing_on", os.O_RDONLY), []
for _ in range(1000):
    start = time.perf_counter()
    os.pread(fd, 100, 0)
    took.append(time.perf_counter() - start)
took.sort()
print(json.dumps(took[990] * 1e3))
'''
READS = '''
import json, os, sys, time
name, took = sys.argv[1] + "/tracing_on", []
for _ in range(3000):
    start = time.perf_counter()
    fd = os.open(name, os.O_RDONLY)
    os.read(fd, 100)
    os.close(fd)
    took.append(time.perf_counter() - start)
took.sort()
print(json.dumps(took[len(took) // 2] * 1e6))
'''
"""
_SCRIPTS = {
    "read": """
median = client(READS)
result = {"us": median, "seconds": median / 1e6}
""",
    "request.computing": """
ending = []
def compute():
    while not ending:
        sum(range(100))
threading.Thread(target=compute, daemon=True).start()
p99 = client(REQUESTS)
ending.append(1)
result = {"p99_ms": p99, "seconds": p99 / 1e3}
""",
    "trace": """
tracefs.write("buffer_size_kb", "20000")
tracefs.write("kprobe_events", "p:twice twice x=%di:s32")
tracefs.write("events/kprobes/twice/enable", "1")
for number in range(100_000):
    program["twice"](1)
tracefs.write("events/kprobes/twice/enable", "0")
def here():
    assert tracefs.read("trace").count("twice:") == 100_000
inside = min(seconds(here) for _ in range(2))
outside = min(seconds(lambda: sh("cat trace")) for _ in range(2))
result = {"ratio": outside / inside, "seconds": outside}
""",
    "list": """
tracefs.write("kprobe_events", "".join(f"p:e{number} f{number // 2}\\n" for number in range(1000)))
result = {"seconds": seconds(lambda: sh("ls -R events"))}
""",
    "define": """
script = 'i=0; while [ $i -lt 1000 ]; do echo "p:e$i f$((i/2))" >> kprobe_events; i=$((i+1)); done'
result = {"seconds": seconds(lambda: sh(script))}
""",
}
_ABOUT = {
    "read": "open, read and close of a small file",
    "request.computing": "a read beside a thread that computes in Python",
    "trace": "cat trace of 100,000 events",
    "list": "ls -R events with 1,000 events",
    "define": "1,000 echo >> kprobe_events",
}


def rows() -> list[Row]:
    """The rows."""
    return [
        Row(f"tracefs.mount.{name}", about, lambda name=name: _sample(name), _ROUNDS, _absent)  # type: ignore[misc]  # mypy does not infer a lambda with a default
        for name, about in _ABOUT.items()
    ]


def _absent() -> str:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs /dev/fuse"
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False)
    return "needs a mount namespace" if tried.returncode else ""


def _sample(name: str) -> Sample:
    script = (
        _HEAD + _SCRIPTS[name] + "\nmounted.close(); os.rmdir(top); print(json.dumps(result), flush=True); os._exit(0)"
    )
    done = subprocess.run([*_UNSHARE, sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return Sample(0, found["seconds"] * 1e9, 1, 1, extra=found)
