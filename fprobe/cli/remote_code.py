"""`fprobe list`, `explain` and `disasm` with -p: what another process has mapped. It is only read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fprobe.cli.failure import Failure
from fprobe.cli.remote_functions import Names, RemoteFunction, functions, opened

if TYPE_CHECKING:
    from fprobe.cli.console import Console
    from sandbox.remote.process import RemoteProcess
    from sandbox.symbols.disassembly import Line
    from sandbox.symbols.table import Symbol

_SHOWN = 8
"""Number of instructions that are shown without --all."""
_SIGTRAP = 5
_SCANNED, _MARGIN = 4096, 23
"""Bytes of a function that are scanned for jumps into its entry; and at least so many."""


def list_running(pids: Sequence[int], patterns: Sequence[str], console: Console) -> None:
    """`fprobe list -p`: the functions of the libraries that the processes have mapped."""
    processes = []
    for pid in pids:
        with opened(pid) as process:
            found = [each.symbol for each in functions(process, patterns)]
        if len(pids) > 1:
            console.note(f"# process {pid}")
        for symbol in found:
            detail = f"{symbol.address:#x} {symbol.size:6}  " if console.verbosity > 0 else ""
            console.line(f"{detail}{symbol.readable} {console.dim(f'[{symbol.module}]')}")
        processes.append({"pid": pid, "functions": [_function(each) for each in found]})
    console.document({"processes": processes})


def _function(symbol: Symbol) -> dict[str, Any]:
    names = {"name": symbol.readable, "symbol": symbol.name, "module": symbol.module}
    return names | {"address": symbol.address, "size": symbol.size}


def explain_running(pids: Sequence[int], patterns: Sequence[str], console: Console) -> None:
    """`fprobe explain -p`: whether the processes can be attached to, and how their functions would be patched."""
    processes = []
    for pid in pids:
        refused = _refusal(pid)
        console.line(console.bad(f"not attachable: {refused}") if refused else f"process {pid} can be attached to")
        with opened(pid) as process:
            blocking = _threads_blocking_traps(pid)
            shown = [_explain(console, found, blocking) for found in functions(process, patterns)]
        processes.append({"pid": pid, "refused": refused, "functions": shown})
    console.document({"processes": processes})


def _refusal(pid: int) -> str:
    """Why the process cannot be attached to; "" if it can."""
    from sandbox.remote import inject
    from sandbox.remote.refusals import Refused

    try:
        inject.prepare(pid, "").process.close()
    except Refused as refused:
        return str(refused.strerror)
    return ""


def _explain(console: Console, found: RemoteFunction, blocking: Sequence[int]) -> dict[str, Any]:
    symbol, code, of_file = found.symbol, found.code, found.code_in_file
    entry, reason = _entry(found, of_file or code, blocking)
    facts = {
        "address": f"{symbol.address:#x}, {symbol.size} bytes, in {symbol.section}",
        "entry": entry,
        "file": found.library.image.path,
    }
    if of_file and code[:8] != of_file[:8]:
        facts["patched"] = f"{code[:8].hex(' ')} now, {of_file[:8].hex(' ')} in its file"
    verdict = console.bad(f"cannot be probed: {reason}") if reason else console.good("can be probed")
    console.line(f"{console.bold(str(symbol))} {verdict}")
    for name, value in facts.items():
        console.line(f"  {name:<10} {value}" if value else "")
    place = {"address": symbol.address, "size": symbol.size, "section": symbol.section}
    names = {"function": symbol.readable, "symbol": symbol.name, "module": symbol.module}
    return names | {"probeable": not reason, "reason": reason} | facts | place


def _entry(found: RemoteFunction, code: bytes, blocking: Sequence[int]) -> tuple[str, str]:
    """How the entry would be patched, and why it cannot be. `blocking`: threads that block SIGTRAP."""
    from ftrace.core.runtime import runtime
    from ftrace.core.sites.entry_plans import Mechanism, choices
    from ftrace.core.sites.refusals import runs_python
    from sandbox.native.x86_64.entry_bytes import REACH, Entries

    symbol = found.symbol
    if symbol.indirect:
        return "the function that the dynamic loader has chosen (IFUNC)", ""
    read = max(min(symbol.size, _SCANNED), _MARGIN)
    code = code[:read] if len(code) >= read else found.library.process.read(symbol.address, read)
    head = Entries(runtime().image, [code], [symbol.address])[0]
    try:
        best = next(iter(choices(head, min(REACH, symbol.size))))
    except (ValueError, StopIteration) as error:
        return "", f"its first instruction cannot be moved: {error}"
    entry = f"{best.mechanism.value}, over {code[: sum(best.lengths)].hex(' ')}"
    if best.mechanism is not Mechanism.BREAKPOINT:
        return entry, ""
    if runs_python(symbol.module):
        return entry, "only a breakpoint fits, and the C library runs with SIGTRAP blocked at times"
    if blocking:
        shown = ", ".join(map(str, blocking[:3]))
        return entry, f"only a breakpoint fits, and SIGTRAP is blocked in thread {shown}"
    return entry, ""


def _threads_blocking_traps(pid: int) -> list[int]:
    found = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda each: int(each.name)):
        try:
            blocked = (task / "status").read_text(errors="replace").partition("\nSigBlk:")[2].split(None, 1)[0]
        except (OSError, IndexError):
            continue
        if int(blocked, 16) >> (_SIGTRAP - 1) & 1:
            found.append(int(task.name))
    return found


def disassemble_running(pids: Sequence[int], function: str, everything: bool, console: Console) -> None:
    """`fprobe disasm -p`: a function's code as it is in memory, and as in its file where that differs."""
    processes: list[dict[str, Any]] = []
    for pid in pids:
        with opened(pid) as process:
            for found in functions(process, (function,)):
                shown = _sections(process, found, None if everything else _SHOWN)
                symbol = found.symbol
                names = {"function": symbol.readable, "symbol": symbol.name, "module": symbol.module}
                processes.append({"pid": pid} | names | shown)
                _print(console, pid, found, shown)
    console.document(
        {
            "processes": [
                each | {key: _objects(each[key]) for key in ("loaded", "in_file") if key in each} for each in processes
            ]
        }
    )


def _sections(process: RemoteProcess, found: RemoteFunction, limit: int | None) -> dict[str, Any]:
    from sandbox.symbols.disassembly import disassemble

    names, code, of_file = Names(process), found.code, found.code_in_file
    if not code:
        raise Failure(f"the size of {found.symbol} is not known: it is a label of assembly")
    sections = {"loaded": disassemble(code, found.symbol.address, names)[:limit]}
    if of_file and of_file != code:
        sections["in_file"] = disassemble(of_file, found.symbol.address, names)[:limit]
    return sections


def _print(console: Console, pid: int, found: RemoteFunction, sections: dict[str, Any]) -> None:
    from sandbox.symbols.disassembly import listing

    titles = {"loaded": f"{found.symbol}, in process {pid}", "in_file": f"{found.symbol}, in its file"}
    for section, lines in sections.items():
        console.line(console.bold(titles[section]))
        for text in listing(lines, found.symbol.address):
            console.line(text)


def _objects(lines: Sequence[Line]) -> list[dict[str, Any]]:
    return [{"address": each.address, "bytes": each.code.hex(), "text": each.text, "note": each.note} for each in lines]
