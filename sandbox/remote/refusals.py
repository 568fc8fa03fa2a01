"""Reasons why code cannot be run in another process, found before anything in it is touched."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_ELF64, _CLASS_AT = 2, 4
_MACHINE = slice(18, 20)
_X86_64 = (62).to_bytes(2, "little")
_STATES = {
    "Z": "has ended and waits for its parent",
    "X": "has ended",
    "T": "is stopped; continue it first: kill -CONT {pid}",
    "t": "is stopped by a debugger",
}

_SCOPES = {
    1: "allows children only; run fprobe as root, or write 0 there: sudo sysctl kernel.yama.ptrace_scope=0",
    2: "allows it with CAP_SYS_PTRACE only; run fprobe as root",
    3: "forbids it to all until the next boot",
}


class Refused(OSError):
    """A process in which code cannot be run. `strerror` is a sentence."""

    def __init__(self, sentence: str, number: int = errno.EPERM) -> None:
        super().__init__(number, sentence)


def check(pid: int) -> None:
    """Raise Refused if code cannot be run in process `pid`, as far as its files in /proc tell."""
    if pid == os.getpid():
        raise Refused(f"process {pid} is this one")
    status = read_status(pid)
    leader = int(status["Tgid"])
    if leader != pid:
        raise Refused(f"{pid} is a thread of process {leader}; give {leader}")
    state = status["State"][:1]
    if state == "Z" and int(status.get("Threads", "1")) > 1:
        raise Refused(f"process {pid} ({status['Name']}) goes on without its first thread; attach before that ends")
    if state in _STATES:
        raise Refused(f"process {pid} ({status['Name']}) {_STATES[state].format(pid=pid)}")
    if status.get("Kthread") == "1" or "VmSize" not in status:
        raise Refused(f"process {pid} ({status['Name']}) is a thread of the kernel")
    tracer = int(status.get("TracerPid", "0"))
    if tracer:
        raise Refused(
            f"process {pid} is traced by process {tracer} (a debugger or strace), and only one can be; end that first"
        )
    _check_system_calls(pid, status)
    _check_machine(pid)


def read_status(pid: int) -> dict[str, str]:
    """The lines of /proc/PID/status. Raises Refused if there is no such process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        raise Refused(f"there is no process {pid}", errno.ESRCH) from None
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _check_system_calls(pid: int, status: dict[str, str]) -> None:
    """A filter that this process has, too, allows what we do; of others nothing can be known, and they may kill."""
    own = read_status(os.getpid())
    filters, ours = (int(each.get("Seccomp_filters", each.get("Seccomp", "0"))) for each in (status, own))
    if status.get("Seccomp") == "1" or filters > ours:
        raise Refused(
            f"process {pid} has restricted its system calls (seccomp), and may be killed if others are made in it"
        )


def _check_machine(pid: int) -> None:
    try:
        with Path(f"/proc/{pid}/exe").open("rb") as file:
            head = file.read(20)
    except PermissionError:
        raise not_permitted(pid) from None
    except OSError as error:
        raise Refused(f"the program of process {pid} cannot be read: {error.strerror}") from None
    if head[_CLASS_AT] != _ELF64 or head[_MACHINE] != _X86_64:
        raise Refused(
            f"process {pid} is a 32-bit program or one for another machine; only x86-64 is supported", errno.ENOEXEC
        )


def not_permitted(pid: int) -> Refused:
    """The refusal for a process that this one may not trace, with the reason that is known."""
    return Refused(f"process {pid} may not be traced: {_why_not(_owner(pid), _ptrace_scope())}")


def _owner(pid: int) -> int:
    """The user that the process belongs to; this one's if the process has ended."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return os.geteuid()


def _ptrace_scope() -> int:
    """The setting of the security module Yama; 0 where there is none."""
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


def _why_not(owner: int, scope: int) -> str:
    if os.geteuid() not in (owner, 0):
        return f"it belongs to user {owner}; run fprobe as that user or as root"
    if scope in _SCOPES:
        return f"/proc/sys/kernel/yama/ptrace_scope is {scope}, which {_SCOPES[scope]}"
    why = "it may have other capabilities or another user namespace, or be no longer dumpable"
    return f"{why}; run fprobe as root" if os.geteuid() else f"{why}, and this root has no CAP_SYS_PTRACE"
