"""`fprobe doctor`: tests what this machine supports."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from fprobe.cli.console import Console
from fprobe.cli.failure import FAILED
from fprobe.cli.options import output_options

OK, WARNING, MISSING = "ok", "warning", "missing"


class Finding(NamedTuple):
    """`status`: OK; WARNING: probing is slower or restricted; MISSING: probing does not work."""

    name: str
    status: str
    detail: str


@click.command("doctor", short_help="Test what this machine supports.", epilog="\b\nExample:\n  fprobe doctor --json\n")
@output_options
def doctor_command(console: Console) -> None:
    """Test what this machine supports, and name the fallback for what it does not.

    Exit code 1 if something that probing needs is missing.
    """
    findings = [_tried(name, check) for name, check in _CHECKS.items()]
    for finding in findings:
        paint = {OK: console.good, WARNING: console.bold, MISSING: console.bad}[finding.status]
        console.line(f"{paint(f'{finding.status:<8}')} {finding.name:<14} {finding.detail}")
    console.document({"ok": _is_well(findings), "findings": [finding._asdict() for finding in findings]})
    if not _is_well(findings):
        sys.exit(FAILED)


def _is_well(findings: list[Finding]) -> bool:
    return all(finding.status != MISSING for finding in findings)


Answer = tuple[str, str]


def _tried(name: str, check: Callable[[], Answer]) -> Finding:
    try:
        status, detail = check()
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        status, detail = MISSING, str(error)
    return Finding(name, status, detail)


def _platform() -> Answer:
    fits = sys.platform == "linux" and platform.machine() == "x86_64"
    cpus = len(os.sched_getaffinity(0))
    return OK if fits else MISSING, f"{platform.system()} {platform.release()} {platform.machine()}, {cpus} CPUs"


def _python() -> Answer:
    from ftrace.core.handlers.python_handler import has_gil
    from sandbox.process import private_names

    text = f"{platform.python_implementation()} {platform.python_version()}"
    if found := private_names.missing():
        return MISSING, f"{text} has no {', '.join(found)}, which fprobe uses"
    if not has_gil():
        return WARNING, (
            f"{text} without the GIL: native handlers, counts and tracers work, Python handlers do not (PYTHON_GIL=1 turns it on)"
        )
    return OK, text


def _llvm() -> Answer:
    import llvmlite
    from llvmlite import binding

    return OK, f"llvmlite {llvmlite.__version__}, LLVM {'.'.join(map(str, binding.llvm_version_info))}"


def _switch() -> Answer:
    from ftrace.core.tracer import OFF_VARIABLE

    value = os.environ.get(OFF_VARIABLE, "")
    if value in ("", "0"):
        return OK, "on"
    return MISSING, f"switched off by {OFF_VARIABLE}={value}"


def _text() -> Answer:
    from sandbox.memory import mappings as memory

    text = memory.allocate_text(None, memory.PAGE, "fprobe-doctor")
    try:
        text.write(text.base, b"\xb8\x2a\x00\x00\x00\xc3")
        return OK, "executable pages on a memfd, patched through a writable alias"
    finally:
        text.unmap()


def _membarrier() -> Answer:
    from sandbox.memory import pages

    pages.sync_cores()
    return OK, "PRIVATE_EXPEDITED_SYNC_CORE"


def _vectors() -> Answer:
    from sandbox.memory.cpu import save_area

    area = save_area()
    return OK, f"{area.instruction}, {area.size} bytes around foreign handlers, components {area.mask:#x}"


def _thread_key() -> Answer:
    from sandbox.threads.thread_key import ThreadKey

    return OK, f"a task is found at %fs:{ThreadKey().offset:#x}, in one load"


def _c_compiler() -> Answer:
    return _compiler("C", "prog.c")


def _cxx_compiler() -> Answer:
    return _compiler("C++", "prog.cc")


def _compiler(language: str, example: str) -> Answer:
    from sandbox.loading.csource import find_compiler

    try:
        return OK, " ".join(find_compiler(language, Path(example)))
    except ValueError as error:
        return WARNING, str(error).removeprefix(f"{example}: ") + f" ({language} programs cannot be loaded)"


def _cache() -> Answer:
    from sandbox.compile import cache

    if os.environ.get(cache.OPT_OUT):
        return WARNING, f"switched off by {cache.OPT_OUT}: everything is compiled afresh"
    store = cache.default_cache()
    store.put(cache.key("doctor"), b"well")
    if store.get(cache.key("doctor")) != b"well":
        return WARNING, f"{store.directory} cannot be used: it is not writable, or not ours alone"
    return OK, str(store.directory)


def _perf_map() -> Answer:
    from sandbox.symbols.perfmap import OPT_OUT, perf_map

    if os.environ.get(OPT_OUT):
        return WARNING, f"switched off by {OPT_OUT}: profilers will not know the programs' functions"
    if not os.access(perf_map.path.parent, os.W_OK):
        return WARNING, f"{perf_map.path.parent} cannot be written: profilers will not know the programs' functions"
    return OK, str(perf_map.path)


def _ptrace() -> Answer:
    tracer = _status_field("TracerPid")
    if tracer not in ("", "0"):
        return (
            WARNING,
            f"process {tracer} is tracing this one; under gdb a breakpoint probe ends the process (docs/kprobes.md)",
        )
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    value = scope.read_text().strip() if scope.exists() else "0"
    return OK, {"0": "debuggers may attach", "1": "only a parent may debug (yama 1)"}.get(
        value, f"restricted (yama {value})"
    )


def _libpython() -> Answer:
    from sandbox.remote import interpreter
    from sandbox.remote.refusals import Refused

    try:
        found = interpreter.find()
    except Refused as error:
        return WARNING, str(error.strerror)
    return OK, f"{found.library}, for programs that are not Python (fprobe run ./server, -p PID)"


def _status_field(name: str) -> str:
    lines = Path("/proc/self/status").read_text(errors="replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), "")


def _shadow_stack() -> Answer:
    features = _status_field("x86_Thread_features")
    if "shstk" in features.split():
        return WARNING, "on: the return of functions with a stub after the prologue (mcount) cannot be hooked"
    return OK, "off"


def _sigtrap() -> Answer:
    blocked = int(_status_field("SigBlk") or "0", 16)
    if blocked >> 4 & 1:
        return (
            WARNING,
            "SIGTRAP is blocked in this thread: only functions whose stub lies in one aligned word are patched",
        )
    return OK, "not blocked"


def _probe() -> Answer:
    import fprobe
    import sandbox
    from ftrace.core.handlers.python_handler import has_gil
    from sandbox.symbols.perfmap import OPT_OUT

    os.environ[OPT_OUT] = "1"  # nobody profiles this function
    module = sandbox.load("define i64 @f(i64 %n) {\n  %m = add i64 %n, 1\n  ret i64 %m\n}\n", name="fprobe-doctor")
    try:
        handlers: dict[str, Any] = {"entry": lambda *_: 0, "exit": lambda *_: None} if has_gil() else {}
        with fprobe.attach(list(module.sites), **handlers) as probe:
            result = module["f"](41)
        if (result, probe.hits) != (42, 1):
            return MISSING, f"a probed call gave {result} with {probe.hits} hits instead of 42 with 1"
        return OK, "a function was patched, called and restored; its probe was hit once"
    finally:
        module.unload()


_CHECKS: dict[str, Callable[[], Answer]] = {
    "platform": _platform,
    "python": _python,
    "llvm": _llvm,
    "probing": _switch,
    "text": _text,
    "membarrier": _membarrier,
    "vectors": _vectors,
    "thread key": _thread_key,
    "sigtrap": _sigtrap,
    "shadow stacks": _shadow_stack,
    "C compiler": _c_compiler,
    "C++ compiler": _cxx_compiler,
    "cache": _cache,
    "perf map": _perf_map,
    "debuggers": _ptrace,
    "libpython": _libpython,
    "a probe": _probe,
}
