"""Options that are refused, and options that only one trace array has (TE-3.13, TE-3.14, TE-10.3)."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from isolation import isolated


def error_of(call: Callable[..., object], *arguments: str) -> str:
    with pytest.raises(OSError) as raised:
        call(*arguments)
    return errno.errorcode[raised.value.errno]


@isolated
def test_te10_3_trace_printk_dest_is_always_that_of_one_trace_array() -> None:
    from fprobe.tracefs import tracefs

    def on() -> list[str]:
        return [path for path in ("", "instances/a/", "instances/b/") if tracefs.read(f"{path}{file}") == "1\n"]

    file = "options/trace_printk_dest"
    tracefs.mkdir("instances/a")
    tracefs.mkdir("instances/b")
    assert on() == [""]
    assert error_of(tracefs.write, file, "0") == "EINVAL" and on() == [""]
    tracefs.write(f"instances/a/{file}", "1")
    assert on() == ["instances/a/"]
    tracefs.write(file, "0")
    tracefs.write(f"instances/b/{file}", "0")
    assert on() == ["instances/a/"]
    tracefs.write("instances/b/trace_options", "trace_printk_dest")
    assert on() == ["instances/b/"]
    tracefs.write(f"instances/b/{file}", "0")
    assert on() == [""]
    tracefs.write(f"instances/a/{file}", "1")
    tracefs.rmdir("instances/a")
    assert tracefs.read(file) == "1\n"


@isolated
def test_te3_14_test_nop_refuse_is_refused_either_way_by_name_and_unless_it_is_so_already_by_file() -> None:
    from fprobe.tracefs import tracefs

    for name in ("test_nop_refuse", "notest_nop_refuse"):
        assert error_of(tracefs.write, "trace_options", name) == "EINVAL"
    assert error_of(tracefs.write, "options/test_nop_refuse", "1") == "EINVAL"
    tracefs.write("options/test_nop_refuse", "0")


@isolated
def test_te3_12_printk_msg_only_needs_trace_printk() -> None:
    from fprobe.tracefs import tracefs

    tracefs.write("trace_marker", "a")
    tracefs.write("trace_options", "printk-msg-only")
    assert tracefs.read("trace").splitlines()[-1] == "a"
    tracefs.write("trace_options", "notrace_printk")
    assert tracefs.read("trace").splitlines()[-1].endswith(": tracing_mark_write: a")


@isolated
def test_te3_12_bin_and_hex_show_the_two_addresses_of_a_function() -> None:
    from fprobe.tracefs import tracefs
    from ftrace.tracing.events.builtin import FUNCTION, KERNEL_STACK
    from ftrace.tracing.instances.trace_array import global_trace

    global_trace().buffer.write(FUNCTION.id, b"abcdefghijklmnop")
    tracefs.write("trace_options", "nocontext-info")
    tracefs.write("trace_options", "bin")
    assert tracefs.read("trace") == "# tracer: nop\n#\nabcdefghijklmnop"
    tracefs.write("trace_options", "nobin")
    tracefs.write("trace_options", "hex")
    assert tracefs.read("trace") == "# tracer: nop\n#\n6867666564636261 706f6e6d6c6b6a69 \n"
    tracefs.write("trace_options", "nohex")
    tracefs.write("trace", "")
    global_trace().buffer.write(KERNEL_STACK.id, bytes(16))
    for mode, end in (("raw", "\n"), ("hex", "\n\n"), ("bin", "\n")):
        tracefs.write("trace_options", mode)
        assert tracefs.read("trace") == f"# tracer: nop\n#\ntype: 4{end}"
        tracefs.write("trace_options", f"no{mode}")


@isolated
def test_te3_8_sym_userobj_shows_file_and_offset() -> None:
    import ctypes
    import struct

    from fprobe.tracefs import tracefs
    from ftrace.tracing.events.builtin import USER_STACK
    from ftrace.tracing.instances.trace_array import global_trace
    from sandbox.memory.mappings import mappings

    here = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value or 0
    start, _, _, path = next(each for each in mappings() if each[0] <= here < each[1])
    global_trace().buffer.write(USER_STACK.id, struct.pack("<IIQQ48x", 1, 0, here, (1 << 47) + 5))
    assert tracefs.read("trace").splitlines()[-2:] == [f" =>  <{here:016x}>", " =>  <0000800000000005>"]
    tracefs.write("trace_options", "sym-userobj")
    assert tracefs.read("trace").splitlines()[-2:] == [f" => {path}[+{here - start:#x}]", " =>  <0000800000000005>"]
    tracefs.write("trace_options", "sym-addr")
    assert tracefs.read("trace").splitlines()[-2] == f" => {path}[+{here - start:#x}] <{here:016x}>"
