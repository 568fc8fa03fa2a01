"""Text of addresses in records according to the options, as seq_print_ip_sym() of kernel/trace/trace_output.c."""

from __future__ import annotations

from ftrace.tracing.instances.options import Options
from ftrace.tracing.symbols import plain, with_offset
from sandbox.memory.mappings import mappings


def in_object(address: int, options: Options) -> str:
    """An address in user space: `FILE[+0xoffset]` with the option sym-userobj, from where FILE is mapped. seq_print_user_ip()."""
    start, file = _file_at(address) if options["sym-userobj"] else (0, "")
    where = f"{file}[+{address - start:#x}]" if file else ""
    return where if file and not options["sym-addr"] else f"{where} <{address:016x}>"


def _file_at(address: int) -> tuple[int, str]:
    """The start and the file of the mapping that contains an address, or else of the next one."""
    start, _, _, path = next((each for each in mappings() if each[1] > address), (0, 0, "", ""))
    return start, path if path.startswith("/") else ""


def ip_sym(address: int, options: Options, *, offset: bool | None = None) -> str:
    """The text of an address. `offset`: whether to add the offset; None: according to the option sym-offset."""
    if not address:
        return "0"
    offset = options["sym-offset"] if offset is None else offset
    text = with_offset(address) if offset else plain(address)
    return f"{text} <{address:016x}>" if options["sym-addr"] else text
