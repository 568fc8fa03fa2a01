"""Run the kernel's own tests of ftrace on the mounted tree.

    python -m tests.ftracetest [--linux DIR] [-k DIR] [NAME...]

--linux: a kernel's source tree, whose tools/testing/selftests/ftrace is run; otherwise Debian's is fetched (source.py). NAME:
tests or directories, such as kprobe/profile or trigger; by default the eight directories. -k DIR keeps the logs there.
Needs root, /dev/fuse, a C compiler and ping. Exits with 1 if a test that is listed as PASS (results.txt) does not pass.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.ftracetest.results import DIRECTORIES, RESULTS, compared, left_out, read, table
from tests.ftracetest.source import SELFTESTS, fetched

_LINE = re.compile(r"\[(\d+)\]( \(instance\) )?.*\t\[(\w+)\]")
_ROOM = "TRACING_STANDS_IN"
_PROGRAMS = ("gcc", "ping")


def tests_of(linux: Path, names: list[str]) -> list[str]:
    """The tests, as paths below test.d without suffix. Raises SystemExit for a name that there is not."""
    top = linux / SELFTESTS / "test.d"
    found = []
    for name in names or DIRECTORIES:
        paths = sorted((top / name).rglob("*.tc")) if (top / name).is_dir() else [top / f"{name}.tc"]
        if not all(path.exists() for path in paths) or not paths:
            sys.exit(f"no test {name!r} in {top}")
        found += [str(path.relative_to(top).with_suffix("")) for path in paths]
    return [name for name in found if name not in left_out()]


def parse(output: str, tests: list[str], instance: list[str]) -> dict[str, str]:
    """Test -> result, from what ftracetest prints. A run in an instance is `NAME (instance)`."""
    results = {}
    runs = [*tests, *(f"{name} (instance)" for name in instance)]
    for number, _, result in _LINE.findall(output):
        results[runs[int(number) - 1]] = result
    return results


def in_namespace(options: argparse.Namespace) -> int:
    """Mount, and run ftracetest. This process is alone in its mount namespace."""
    from fprobe.mount import beside
    from fprobe.tracefs import mount, tracefs
    from tests.ftracetest.machine import Machine

    machine = Machine()
    beside.add_to(tracefs).update(modules=machine.modules_file(), interrupts=machine.interrupts_file())
    with tempfile.TemporaryDirectory(prefix="tracefs-") as room:
        place, programs, logs = (Path(room, name) for name in ("tracing", "bin", "logs"))
        for each in (place, programs, logs):
            each.mkdir()
        for name, sign in (("modprobe", "+"), ("rmmod", "-")):
            (programs / name).write_text(
                f'#!/bin/sh\nfor last; do :; done\nexec echo "{sign}$last" > {place}/fprobe/modules\n'
            )
            (programs / name).chmod(0o755)
        for each in ("/sys/kernel/tracing", "/sys/kernel/debug"):
            subprocess.run(["umount", "-q", "-R", each], check=False, stderr=subprocess.DEVNULL)
        with mount(place, before_request=machine.before_request):
            _lay_over(place, beside)
            status = _run(options, machine, place, programs, Path(options.keep) if options.keep else logs)
            machine.end()
        return status


def _lay_over(place: Path, beside: object) -> None:
    """Lay the files beside the tree over the kernel's. /sys/kernel/debug has no directory for them without debugfs."""
    subprocess.run(["mount", "-t", "tmpfs", "none", "/sys/kernel/debug"], check=True)
    Path("/sys/kernel/debug/kprobes").mkdir()
    subprocess.run(["mount", "--bind", place / "fprobe/kprobes", "/sys/kernel/debug/kprobes"], check=True)
    for name in ("debug", "kernel"):  # the machine's kernel may lack some of them
        subprocess.run(["mount", "--bind", place / "fprobe/sysctl" / name, f"/proc/sys/{name}"], check=True)
    subprocess.run(["mount", "--bind", place / "fprobe/interrupts", "/proc/interrupts"], check=True)
    beside.lay_over(place)  # type: ignore[attr-defined]


def _run(options: argparse.Namespace, machine: object, place: Path, programs: Path, logs: Path) -> int:
    linux = Path(options.linux).resolve() if options.linux else fetched()
    top = linux / SELFTESTS
    tests = tests_of(linux, options.names)
    paths = [top / "test.d" / f"{name}.tc" for name in tests]
    instance = [
        name
        for name, path in zip(tests, paths, strict=True)
        if re.search(r"^#[ \t]*flags:.*instance", path.read_text(), re.M)
    ]
    command = ["sh", top / "ftracetest", "-k", "-l", logs, *map(str, paths)]
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    child = subprocess.Popen(
        [top / "ftracetest", *command[2:]], stdout=subprocess.PIPE, text=True, env=environment, stdin=subprocess.DEVNULL
    )
    machine.start(child.pid)  # type: ignore[attr-defined]
    output = ""
    assert child.stdout is not None
    for line in child.stdout:
        output += line
        print(line, end="", flush=True)
    child.wait()
    results = parse(output, tests, instance)
    print(table(results))
    known = read(RESULTS)
    for line in compared(results, known):
        print(line)
    if options.write:
        RESULTS.write_text("".join(f"{result:12}{name}\n" for name, result in sorted((known | results).items())))
    return int(any(known.get(name) == "PASS" and result != "PASS" for name, result in results.items()))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--linux", metavar="DIR")
    parser.add_argument("names", metavar="NAME", nargs="*")
    parser.add_argument("-k", "--keep", metavar="DIR")
    parser.add_argument("--write", action="store_true", help="write results.txt")
    options = parser.parse_intermixed_args()
    if os.environ.get(_ROOM):
        return in_namespace(options)
    if os.geteuid():
        sys.exit("ftracetest needs root")
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        sys.exit(
            f"ftracetest needs {' and '.join(missing)}; without, tests end as UNRESOLVED (apt-get install iputils-ping gcc)"
        )
    command = ["unshare", "-m", "--propagation", "private", sys.executable, "-m", "tests.ftracetest", *sys.argv[1:]]
    return subprocess.run(command, env=os.environ | {_ROOM: "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
