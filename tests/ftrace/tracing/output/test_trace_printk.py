"""trace_printk and trace_puts: called by C, by LLVM IR, by the native language, by handlers and by Python."""

from __future__ import annotations

import ctypes
import random
import tempfile
import threading
from pathlib import Path

import pytest
from isolation import isolated

C = r"""
int trace_printk(const char *fmt, ...);
int trace_puts(const char *text);
int __trace_bprintk(unsigned long ip, const char *fmt, ...);
int __trace_bputs(unsigned long ip, const char *text);
int __trace_puts(unsigned long ip, const char *text, int size);

int c_caller(int n)
{
    trace_printk("%d %s %c %hd %ld %#x|%-6.2s|%d %d %p\n", n, "text", 'z', (short)-2, 1L << 40, 255, "abc", 7, 8, (void *)16);
    trace_printk("no arguments\n");
    trace_puts("puts\n");
    __trace_bprintk((unsigned long)c_caller, "%*d %.*s %ps 100%%\n", 4, n, 2, "xyz", c_caller);
    __trace_bputs((unsigned long)c_caller, "bputs\n");
    return __trace_puts((unsigned long)c_caller, "copied", 6);
}
"""
IR = r"""
declare i32 @trace_printk(ptr, ...)
@form = constant [9 x i8] c"ir %ld.\0A\00"
define i64 @ir_caller(i64 %a) { %r = call i32 (ptr, ...) @trace_printk(ptr @form, i64 %a) ret i64 0 }
"""


def lines() -> list[str]:
    """What follows the time in each line of trace."""
    from fprobe.tracefs import tracefs

    return [line.split(": ", 1)[1] for line in tracefs.read("trace").splitlines() if line[:1] != "#"]


def types() -> list[int]:
    """The types of the records."""
    from ftrace.tracing.instances.trace_array import global_trace

    return [record.common.type for record in global_trace().buffer.records()]


@isolated
def test_a_program_in_c() -> None:
    import fprobe  # noqa: F401
    import sandbox

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "printer.c")
        path.write_text(C)
        program = sandbox.load(path, name="printer")
    assert program["c_caller"](5) == 6
    assert lines() == [
        "c_caller [printer]: 5 text z -2 1099511627776 0xff|ab    |7 8 0000000000000010",
        "c_caller [printer]: no arguments",
        "c_caller [printer]: puts",
        f"c_caller [printer]:    5 xy {_described(program['c_caller'].address)} 100%",
        "c_caller [printer]: bputs",
        "c_caller [printer]: copied",
    ]
    assert types() == [6, 14, 14, 6, 14, 5]


def _described(address: int) -> str:
    from sandbox import symbol_table

    return symbol_table.describe(address)


@isolated
def test_an_unloaded_program_in_ir_and_the_formats() -> None:
    import fprobe  # noqa: F401
    import sandbox
    from fprobe.tracefs import tracefs

    assert tracefs.read("printk_formats") == ""
    program = sandbox.load(IR, name="printer")
    program["ir_caller"](-77)
    program["ir_caller"](3)
    program.unload()
    assert [line.partition(": ")[2] for line in lines()] == ["ir -77.", "ir 3."]
    address, _, text = tracefs.read("printk_formats").partition(" : ")
    assert text == '"ir %ld.\\n"\n' and int(address, 16)


@isolated
def test_a_program_and_a_handler_in_the_native_language() -> None:
    import native_printers as native

    import fprobe

    native.printing(12)
    with fprobe.attach("printing", entry=native.entry):
        native.printing(13)
    assert lines() == ["printing [native_printers]: size 12", *["printing [native_printers]: size 13"] * 2]


@isolated
def test_python_and_its_mistakes() -> None:
    import fprobe
    from fprobe.tracefs import tracefs

    assert fprobe.trace_printk("n=%d %s %c\n", -1, "é", "x") == 24
    assert fprobe.trace_printk("100%\n") == fprobe.trace_puts("100%\n") == 16
    assert lines() == ["trace_printk: n=-1 é x", *["trace_printk: 100%"] * 2]
    for values, message in (
        (("%d %d", 1), "takes 2 arguments, and 1 were given"),
        (("%d", "1"), "a number takes an int, not '1'"),
        (("%s", 1), "%s takes a str or bytes, not 1"),
        (("a %f", 1), "'%f' is none of %d"),
    ):
        with pytest.raises(TypeError, match=message):
            fprobe.trace_printk(*values)
    with pytest.raises(ValueError, match="take 1204 bytes; a record holds 1024"):
        fprobe.trace_printk("%s", "x" * 1200)
    with pytest.raises(ValueError, match="cannot be kept"):
        fprobe.trace_printk("x" * 1100 + "%d", 1)
    assert fprobe.trace_puts("y" * 1100) > 1000 and types()[-1] == 5
    tracefs.write("tracing_on", "0")
    assert fprobe.trace_puts("lost") == 0


@isolated
def test_options_switches_and_forms() -> None:
    import fprobe
    import sandbox
    from fprobe.tracefs import tracefs

    call = sandbox.load(IR, name="printer")["ir_caller"]
    for off, on in (
        ("trace_options notrace_printk", "trace_options trace_printk"),
        ("tracing_on 0", "tracing_on 1"),
        ("tracing_cpumask 0", "tracing_cpumask 1"),
    ):
        tracefs.write(*off.split())
        call(1)
        assert fprobe.trace_printk("%d", 1) == 0
        tracefs.write(*on.split())
        assert lines() == [], off
    call(2)
    fprobe.trace_puts("puts\n")
    tracefs.write("trace_options", "printk-msg-only")
    assert tracefs.read("trace").splitlines()[-2:] == ["ir 2.", "puts"]
    tracefs.write("trace_options", "raw")
    assert tracefs.read("trace").splitlines()[-2:] == ["ir 2.", "puts"]
    tracefs.write("trace_options", "noprintk-msg-only")
    raw = tracefs.read("trace").splitlines()[-2:]
    assert [line.split(" : ", 1)[1].split(" : ")[-1] for line in raw] == ["ir 2.", "puts"]
    tracefs.write("trace_options", "noraw")
    with tracefs.open("trace_pipe") as pipe:
        assert pipe.read(4096).count(b": ir 2.\n") == 1 and lines() == []


@isolated
def test_records_go_where_trace_printk_dest_says() -> None:
    import fprobe
    import sandbox
    from fprobe.tracefs import tracefs

    call = sandbox.load(IR, name="printer")["ir_caller"]
    tracefs.mkdir("instances/a")
    tracefs.write("instances/a/options/trace_printk_dest", "1")
    call(1)
    fprobe.trace_puts("python\n")
    assert lines() == []
    shown = tracefs.read("instances/a/trace")
    assert "ir_caller [printer]: ir 1.\n" in shown and "trace_printk: python\n" in shown
    tracefs.rmdir("instances/a")
    call(2)
    assert lines() == ["ir_caller [printer]: ir 2."]


@isolated
def test_an_instance_is_removed_while_threads_print() -> None:
    import fprobe  # noqa: F401
    import sandbox
    from fprobe.tracefs import tracefs

    program = sandbox.load(
        IR.replace("ret i64 0", "%n = sub i64 %a, 1 %z = icmp eq i64 %n, 0 br i1 %z, label %end, label %next\n"
                   "next: %x = call i64 @ir_caller(i64 %n) br label %end\nend: ret i64 0"),
        name="printer",
    )  # fmt: skip
    threads = [threading.Thread(target=lambda: [program["ir_caller"](200) for _ in range(150)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        tracefs.mkdir("instances/a")
        tracefs.write("instances/a/options/trace_printk_dest", "1")
        tracefs.rmdir("instances/a")
    for thread in threads:
        thread.join()
    assert tracefs.read("printk_formats").count("\n") == 1


@isolated
def test_what_a_program_prints_is_what_libc_prints() -> None:
    """Random formats and arguments, packed by machine code; and by Python, which makes the same record."""
    import fprobe
    from ftrace.tracing.output.trace_printk import address_of

    address_of_printk, seed = address_of("trace_printk"), random.randrange(1 << 32)
    draw = random.Random(seed)
    libc, expected = ctypes.CDLL(None), []
    for _ in range(300):
        form, values = _drawn(draw)
        native = [ctypes.c_char_p(each) if isinstance(each, bytes) else ctypes.c_int64(each) for each in values]
        text = ctypes.create_string_buffer(4096)
        libc.snprintf(text, ctypes.c_size_t(4096), form.encode(), *native)
        expected.append(text.value.decode())
        printk = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, *map(type, native))(address_of_printk)
        assert printk(form.encode(), *native) > 0, (seed, form)
        assert fprobe.trace_printk(form, *values) > 0
    from ftrace.tracing.instances.trace_array import global_trace
    from ftrace.tracing.output.events import events_by_id, printed_text

    found = [(record.data[16:], printed_text(events_by_id()[record.common.type], record.data))
             for record in global_trace().buffer.records()]  # fmt: skip
    assert [text for _, text in found[::2]] == expected, seed
    assert found[::2] == found[1::2], seed


def _drawn(draw: random.Random) -> tuple[str, list[int | bytes]]:
    form, values = "", []
    for _ in range(draw.randrange(1, 9)):
        form += draw.choice(["", "a", " ", "%%"]) + "%" + draw.choice(["", "-", "0", "+", " ", "#"])
        for text in (draw.choice(["", "7", "*"]), draw.choice(["", "", ".0", ".3", ".*"])):
            form += text
            if "*" in text:
                values.append(draw.randrange(0, 12))
        if draw.random() < 0.3:
            form += "s"
            values.append(bytes(draw.choices(b"abcdef", k=draw.randrange(9))))
        else:
            form += draw.choice(["", "h", "hh", "l", "ll", "z"]) + draw.choice("diuoxX")
            values.append(draw.choice([0, draw.randrange(-(1 << 63), 1 << 63)]))
    return form, values


@isolated
def test_more_formats_than_can_be_kept() -> None:
    import fprobe
    from fprobe.tracefs import tracefs

    assert all(fprobe.trace_puts(f"{number}\n") for number in range(4500))
    assert [int(line.split(": ")[1]) for line in lines()] == list(range(4500))
    kept = tracefs.read("printk_formats").count("\n")
    assert 3000 < kept <= 4096 and types().count(14) == kept and types().count(5) == 4500 - kept
    with pytest.raises(ValueError, match="cannot be kept"):
        for number in range(2000):
            fprobe.trace_printk(f"{number} %d\n", 1)
    assert fprobe.trace_puts("7\n") and lines()[-1] == "trace_printk: 7" and types()[-1] == 14
