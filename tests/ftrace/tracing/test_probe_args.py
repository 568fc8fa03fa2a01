"""Arguments of probe events without a process: what is fetched, where it is stored, and how it is printed."""

from __future__ import annotations

import errno

import pytest

from ftrace.ring_buffer.formatters import Memo, compiled
from ftrace.tracing.events.dynevent import parse_event_name, sanitized
from ftrace.tracing.probe_args.arguments import DentryLayout, expand, expand_dentries, parse_arguments
from ftrace.tracing.probe_args.errors import ErrorCode, Finding, ProbeError
from ftrace.tracing.probe_args.fetch import (
    Comm,
    Dereference,
    EntryArgument,
    Fetch,
    Immediate,
    ImmediateString,
    Register,
    ReturnValue,
    SavedArgument,
    StackPointer,
    StackWord,
    Store,
    SymbolAddress,
)
from ftrace.tracing.probe_args.layout import argument_pieces, format_text, print_fmt, record_layout, record_pieces
from ftrace.tracing.probe_args.scope import Scope
from ftrace.tracing.probe_args.types import Bitfield
from sandbox.images.btf import Array, Int, Member, Pointer, Prototype, Struct, Void

S32, U32, U64, CHAR = Int(32, True), Int(32, False), Int(64, False), Int(8, True)


def member(name, offset, kind, size=0):
    return Member(name, offset, size, lambda: kind)


INNER = Struct((member("low", 0, U32, 3), member("high", 3, U32, 5), member("whole", 32, U32)))
FILE = Struct(
    (
        member("f_mode", 64, U32),
        member("f_name", 128, Pointer(lambda: CHAR)),
        member("f_text", 192, Array(CHAR)),
        member("f_inner", 320, INNER),
        member("", 448, Struct((member("hidden", 16, S32),))),
        member("f_next", 576, Pointer(lambda: FILE)),
    )
)
PROTOTYPE = Prototype((("fd", S32), ("file", Pointer(lambda: FILE)), ("count", U64)), Pointer(lambda: FILE))


def scope(**given):
    return Scope(**{"at_entry": True, "find_prototype": lambda: PROTOTYPE} | given)


def at_return():
    return scope(at_entry=False, at_return=True)


def only(text, where=None):
    return parse_arguments([text], where or scope())[0]


@pytest.mark.parametrize(
    "text, source, dereferences",
    [
        ("%di", Register("di"), ()),
        ("$stack", StackPointer(), ()),
        ("$stack3", StackWord(3), ()),
        ("x=$arg7", EntryArgument(6), ()),
        ("$comm", Comm(), ()),
        ("\\-1", Immediate((1 << 64) - 1), ()),
        ('\\"a=b"', None, None),
        ("@0x10", Immediate(16), (Dereference(0),)),
        ("@jiffies+8", SymbolAddress("jiffies+8"), (Dereference(0),)),
        ("-8(+u0x10(%si))", Register("si"), (Dereference(16, True), Dereference(-8))),
        ("+-4(%si)", Register("si"), (Dereference(-4),)),
        ("count", EntryArgument(2), ()),
        ("file->f_mode", EntryArgument(1), (Dereference(8),)),
        ("file->f_next->f_inner.whole", EntryArgument(1), (Dereference(72), Dereference(44))),
        ("file->hidden", EntryArgument(1), (Dereference(58),)),
        ("file->f_name:string", EntryArgument(1), (Dereference(16), Dereference(0))),
        ("file->f_text:string", EntryArgument(1), (Dereference(24),)),
    ],
)
def test_pe4_1_pe4_2_pe4_3_pe4_4_pe4_10_what_is_fetched(text, source, dereferences):
    if source is None:
        with pytest.raises(ProbeError):  # the first `=` ends the name
            only(text)
        text, source, dereferences = 'x=\\"a=b"', ImmediateString("a=b"), ()
    assert only(text).fetch == Fetch(source, dereferences)


def test_pe4_6_parameters_at_a_return_are_saved_once_each():
    where = at_return()
    arguments = parse_arguments(["a=$arg3", "fd", "b=$arg3", "+0(file)", "r=$retval"], where)
    assert where.saved == [2, 0, 1]
    assert [argument.fetch.source for argument in arguments] == [
        SavedArgument(2, 0), SavedArgument(0, 1), SavedArgument(2, 0), SavedArgument(1, 2), ReturnValue(),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text, kind, store",
    [
        ("%di", "x64", Store.VALUE),
        ("fd", "s32", Store.VALUE),
        ("count", "u64", Store.VALUE),
        ("file", "x64", Store.VALUE),
        ("file->f_mode", "u32", Store.MEMORY),
        ("file->f_inner", "x64", Store.MEMORY),
        ("+0(fd)", "x64", Store.MEMORY),
        ("+0(%di):string", "string", Store.STRING),
        ("+0(%di):string[2]", "string", Store.STRING_POINTERS),
        ("\\16:string", "string", Store.STRING_AT_VALUE),
        ('\\"x"', "string", Store.LITERAL),
        ("$comm", "string", Store.COMM),
        ("%di:symstr", "symstr", Store.SYMBOL_TEXT),
        ("+0(%di):char[3]", "char", Store.MEMORY),
    ],
)
def test_pe4_12_pe4_16_pe4_20_types_and_how_they_are_stored(text, kind, store):
    argument = only(text)
    assert (argument.type.name, argument.store) == (kind, store)


def test_pe4_12_the_return_value_has_the_functions_type():
    assert only("$retval", at_return()).type.name == "x64"
    assert only("$retval->f_mode", at_return()).fetch == Fetch(ReturnValue(), (Dereference(8),))
    nothing = scope(at_entry=False, at_return=True, find_prototype=lambda: Prototype((), Void()))
    with pytest.raises(ProbeError) as raised:
        only("$retval", nothing)
    assert raised.value.findings == (Finding(ErrorCode.NO_RETVAL, 0, 2),) and raised.value.errno == errno.ENOENT


def test_pe4_12_pe4_18_bitfields_written_and_of_structures():
    assert only("%di:b4@4/32").bits == Bitfield(4, 4) and only("%di:b4@4/32").type.name == "u32"
    assert only("file->f_inner.high").bits == Bitfield(5, 3)
    assert only("file->f_inner.whole").bits is None


@pytest.mark.parametrize("levels, source", [(14, "%si"), (13, "@1"), (12, "@s"), (14, "fd")])
def test_pe4_9_depth_of_dereferences(levels, source):
    assert len(only("+0(" * levels + source + ")" * levels).fetch.dereferences) >= levels
    with pytest.raises(ProbeError) as raised:
        only("+0(" * (levels + 1) + source + ")" * (levels + 1))
    assert raised.value.findings == (Finding(ErrorCode.TOO_MANY_OPS, 3, 2),)
    if source == "@s":
        with pytest.raises(ProbeError) as raised:
            only("+0(" * 14 + source + ")" * 14)
        assert raised.value.findings == (Finding(ErrorCode.TOO_MANY_OPS, 6, 2),)


def test_pe4_14_pe4_15_lengths_and_sizes():
    only("a=" + "@" + "s" * 62)
    for text, number in (("a=@" + "s" * 63, errno.E2BIG), ("a=", errno.EINVAL)):
        with pytest.raises(ProbeError) as raised:
            only(text)
        assert raised.value.errno == number
    whole = [f"a{index}=+0(%di):x64[64]" for index in range(6)]
    assert sum(argument.size for argument in parse_arguments(whole, scope())) == 3072
    with pytest.raises(ProbeError) as raised:
        parse_arguments([*whole, "%di:u8"], scope())
    assert raised.value.findings == (Finding(ErrorCode.EVENT_TOO_BIG, 0, 8),) and raised.value.errno == errno.E2BIG
    parse_arguments(["%di"] * 128, scope())
    with pytest.raises(ProbeError) as raised:
        parse_arguments(["%di"] * 129, scope())
    assert not raised.value.findings and raised.value.errno == errno.E2BIG


def test_pe3_7_pe3_8_names_of_arguments():
    arguments = parse_arguments(["%ax", "foo=%bx", "%cx", "fd", "+0(file)", "comm=$comm"], scope())
    assert [argument.name for argument in arguments] == ["arg1", "foo", "arg3", "fd", "arg5", "comm"]
    assert str(arguments[1]) == "foo=%bx"


def test_pe4_12_words_that_stand_for_parameters():
    assert expand(["$arg1", "$arg3:u8", "x=$arg1", "$arg*"], scope()) == [
        "fd", "count:u8", "x=$arg1", "fd", "file", "count",
    ]  # fmt: skip
    assert expand(["$arg*:u8"], scope()) == ["fd", "file", "count"]
    unknown = scope(find_prototype=lambda: None)
    assert expand(["$arg1", "%di"], unknown) == ["$arg1", "%di"]
    with pytest.raises(ProbeError) as raised:
        expand(["$arg*"], unknown)
    assert raised.value.findings == (Finding(ErrorCode.NOSUP_BTFARG, 0, 2),)
    many = Prototype(tuple((f"{'p' * 20}{index}", S32) for index in range(7)), Void())
    with pytest.raises(ProbeError) as raised:
        expand(["$arg*"], scope(find_prototype=lambda: many))
    assert raised.value.findings == (Finding(ErrorCode.ARGS_2LONG, 0, 2),) and raised.value.errno == errno.E2BIG


def test_pe4_13_names_of_dentries_and_files():
    layout = DentryLayout(0x28, 0x48)
    assert expand_dentries(["f=$arg1:%pD", "%di:%pd", "a=%di"], layout) == [
        "f=+0x0(+0x28(+0x48($arg1))):string", "+0x0(+0x28(%di)):string", "a=%di",
    ]  # fmt: skip
    assert expand_dentries(["f=$arg1:%pD"], DentryLayout()) == ["f=$arg1:%pD"]
    with pytest.raises(OSError) as raised:
        expand_dentries(["f=$arg1:%pD"] * 8, layout)
    assert raised.value.errno == errno.ENOMEM


def test_te2_1_te2_3_te2_4_te2_6_format_of_an_event():
    arguments = parse_arguments(["dfd=%ax", "name=+0(%si):string", "+0(%di):u8[4]", "s=+0(%si):string[2]"], scope())
    layout = record_layout(arguments, is_return=False)
    assert [field.line() for field in layout.fields] == [
        "\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;",
        "\tfield:u64 dfd;\toffset:16;\tsize:8;\tsigned:0;",
        "\tfield:__data_loc char[] name;\toffset:24;\tsize:4;\tsigned:1;",
        "\tfield:u8 arg3[];\toffset:28;\tsize:4;\tsigned:0;",
        "\tfield:__data_loc char[][2] s;\toffset:32;\tsize:8;\tsigned:1;",
    ]
    assert layout.size == 40
    text = format_text("myprobe", 20, layout.fields, print_fmt(layout))
    assert text.startswith("name: myprobe\nID: 20\nformat:\n\tfield:unsigned short common_type;")
    assert text.endswith(
        '\nprint fmt: "(%lx) dfd=0x%Lx name=\\"%s\\" arg3={%u,%u,%u,%u} s={\\"%s\\",\\"%s\\"}", REC->__probe_ip, REC->dfd, '
        "__get_str(name), REC->arg3[0], REC->arg3[1], REC->arg3[2], REC->arg3[3], __get_str(s[0]), __get_str(s[1])\n"
    )


def test_te2_2_te2_5_format_of_a_return_event():
    layout = record_layout(parse_arguments(["$retval:s32"], scope(at_entry=False, at_return=True)), is_return=True)
    assert [(field.name, field.offset) for field in layout.fields] == [
        ("__probe_func", 8), ("__probe_ret_ip", 16), ("arg1", 24),
    ]  # fmt: skip
    assert print_fmt(layout) == '"(%lx <- %lx) arg1=%d", REC->__probe_func, REC->__probe_ret_ip, REC->arg1'


@pytest.mark.parametrize(
    "kind, data, text",
    [
        ("u8", b"\xff", "255"),
        ("s8", b"\xff", "-1"),
        ("x8", b"\x00", "0x0"),
        ("s64", b"\xfe" + b"\xff" * 7, "-2"),
        ("x64", b"\x81" + b"\xff" * 7, "0xffffffffffffff81"),
        ("char", b"t", "'t'"),
        ("symbol", b"\x10" + b"\x00" * 7, "<16>"),
        ("b4@4/32", b"\x07\0\0\0", "7"),
        ("u16[2]", b"\1\0\2\0", "{1,2}"),
        ("x32[1]", b"\1\0\0\0", "{0x1}"),
        ("char[2]", b"ab", "{'a','b'}"),
        ("string", b"\x14\x00\x03\x00hi\0", '"hi"'),
        ("string", b"\0\0\0\0", "(fault)"),
        ("symstr", b"\x14\x00\x03\x00f+\0", '"f+"'),
    ],
)
def test_pe4_16_pe4_22_pe4_23_text_of_a_value(kind, data, text):
    layout = record_layout([only(f"v=+0(%di):{kind}")], is_return=False)
    show = compiled([*argument_pieces(layout.arguments[0], Memo("<{}>".format))])
    assert show(b"\0" * 16 + data) == f" v={text}"


def test_te3_6_text_of_a_record():
    def word(value):
        return value.to_bytes(8, "little")

    entry = record_layout(parse_arguments(["fd", "%si:u8"], scope()), is_return=False)
    record = b"\0" * 8 + word(16) + b"\xff" * 4 + b"\7"
    show = compiled(record_pieces(entry, Memo("f+{:#x}/0x20".format), Memo(str)))
    assert show(record) == "(f+0x10/0x20) fd=-1 arg2=7"
    leave = record_layout([], is_return=True)
    record = b"\0" * 8 + word(1) + word(2)
    assert compiled(record_pieces(leave, Memo("caller+{}".format), Memo("f{}".format)))(record) == "(caller+2 <- f1)"


def test_pe3_1_pe3_3_group_and_event():
    assert parse_event_name("ev", 2) == (None, "ev")
    assert parse_event_name("g-1/ev", 2) == ("g-1", "ev")
    assert parse_event_name("g.ev", 2) == ("g", "ev")
    assert parse_event_name("g/", 2) == ("g", None)
    assert parse_event_name("a" * 63 + "/" + "b" * 63, 2) == ("a" * 63, "b" * 63)


def test_pe3_4_generated_names():
    assert sanitized("p_foo.isra.0_16") == "p_foo_isra_0_16"
    assert sanitized("vfs_re?d*:__entry") == "vfs_re?d____entry"
    assert len(sanitized("p" * 100)) == 63
    assert sanitized("p_libstdc++-6.so:f@GLIBC_2.2.5_0") == "p_libstdc___6_so_f_GLIBC_2_2_5_0"
