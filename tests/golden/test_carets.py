"""The kernel's self-tests of definitions: commands with a `^` where error_log's caret has to be."""

from __future__ import annotations

import errno

import pytest
from sampled import sampled

import sandbox

LONG = "1" * 65
KPROBES = f"""\
p^100 vfs_read
r^1a111 vfs_read
r^100000 vfs_read
r^0 vfs_read
r^{"0" * 63}5 vfs_read
p ^non_exist_func
p ^name_show
r ^name_show+0 $retval
p ^hoge-fuga
p ^hoge+1000-1000
r ^vfs_read+10
p:^/bar vfs_read
p:^{LONG}/bar vfs_read
p:^foo.1/bar vfs_read
p:^ vfs_read
p:foo/^{LONG} vfs_read
p:foo/^bar.1 vfs_read
p:^a.b/c vfs_read
p:a/^b/c vfs_read
p:a.^b.c vfs_read
p:^/ vfs_read
p vfs_read ^$retval
p vfs_read ^$retvalx
r vfs_read ^$retvalx
p vfs_read ^$stack10000
p vfs_read ^$stackp
p vfs_read ^$stack-1
p vfs_read ^$arg10000
p vfs_read ^$arg0
p vfs_read a=^$arg0
p vfs_read ^$arg1x
p vfs_read ^$none_var
p vfs_read ^%none_reg
p vfs_read ^@12345678abcde
p vfs_read ^@+10
p vfs_read arg1=\\^x
p vfs_read arg1=\\"abcd^
p vfs_read arg1=\\"^
p vfs_read ^+0@0)
p vfs_read ^+0ab1(@0)
p vfs_read +0(+0(@0^)
p vfs_read +0(^$comm)
p vfs_read ^&1
p vfs_read ^-+4(%ax)
p vfs_read +u0(+u^0(zz))
p vfs_read +0(@11):u8[10^
p vfs_read +0(@11):u8[10]^a
p vfs_read +0(@11):u8[^10a]
p vfs_read +0(@11):u8[^256]
p vfs_read +0(@11):u8[^0]
p vfs_read +0(@11):u8[^-1]
p vfs_read @11:^unknown_type
p vfs_read %ax:^u8[2]
p vfs_read $stack0:^string
p vfs_read @11:^b10@a/16
p vfs_read %di:^b9@0/8
p vfs_read ^arg123456789012345678901234567890=@11
p vfs_read ^=@11
p vfs_read ^var.1=@11
p vfs_read var1=@11 ^var1=@12
p vfs_read ^common_pid=@11
p vfs_read ^__probe_ip=%ax
p vfs_read ^+1234567(+1234567(+1234567(+1234567(+1234567(+1234567(@1234))))))
p vfs_read arg1=^
p ^vfs_read+3
p vfs_read^%hoge
p ^vfs_read+10%return
p^5 vfs_read%return
p vfs_read+20 ^$arg*
p vfs_read+20 ^hoge
p vfs_read args=^$arg*
p vfs_read +0(^$arg*)
p vfs_read $arg* ^$arg*
p vfs_read ^hoge
p kfree ^$arg10
r kfree ^$retval
p vfs_read file->^foo
p vfs_read file^-.foo
p vfs_read file.^foo
p vfs_read file->f_mode.^x
p vfs_read ^file:string
p vfs_read count->^x
p vfs_read file->^
p ^vfs_read %ax @nosuchsym
p ^vfs_read a=@vfs_read+x
r 0x1234567 ^$retval
p vfs_read %di:x32[65^
"""
FPROBES = """\
f^100 vfs_read
f^1a111 vfs_read
f^100000 vfs_read
f^0 vfs_read%hoge
f^5 vfs_read
f5 vfs_read^%hoge
f ^non_exist_func
f ^nothing_*
f ^vfs_read+10
f vfs_read ^%ax
f vfs_read^%hoge
f vfs_read^%return%return
f:^/bar vfs_read
f vfs_read ^$none_var
f vfs_read ^@+10
f vfs_read +0(^$comm)
f vfs_read ^=@11
f vfs_read file->^foo
f vfs_read file^-.foo
f vfs_read ^file:string
f vfs_read%return $retval->^foo
f vfs_* ^file
t some^.point
t point^%return
t^5 point
t^0 some.point
t^9999 point $retval
t5 some^.point
t point a=^$retval
"""


def _split(text):
    """(command, where the caret has to be); the last `^` marks it."""
    return [(line[: line.rindex("^")] + line[line.rindex("^") + 1 :], line.rindex("^")) for line in text.splitlines()]


def _caret(log):
    return len(log.splitlines()[-1]) - len("  Command: ^")


@pytest.mark.parametrize("command, position", sampled(_split(KPROBES), 30))
def test_pe8_7_carets_of_kprobe_events(machine, command, position):
    machine.tracefs.write("error_log", "")
    with pytest.raises(OSError):
        machine.tracefs.write("kprobe_events", command, append=True)
    log = machine.tracefs.read("error_log")
    assert "trace_kprobe: error: " in log and f"  Command: {command}\n" in log
    assert _caret(log) == position, log
    assert machine.tracefs.read("dynamic_events") == ""


@pytest.mark.parametrize("command, position", sampled(_split(FPROBES), 12))
def test_pe8_7_carets_of_fprobe_events(machine, command, position):
    machine.tracefs.write("error_log", "")
    with pytest.raises(OSError):
        machine.tracefs.write("dynamic_events", command, append=True)
    log = machine.tracefs.read("error_log")
    assert "trace_fprobe: error: " in log
    assert _caret(log) == position, log
    assert machine.tracefs.read("dynamic_events") == ""


@pytest.mark.parametrize(
    "command, messages",
    [
        ("e:^ kprobes.ev", ["Event name is not specified"]),
        ("e:^/x kprobes.ev", ["Group name is not specified"]),
        ("e:x ^nosuch", ["This requires both group and event name to attach"]),
        ("e:x ^kprobes/", ["This requires both group and event name to attach"]),
        (
            "e:x ^/ev",
            ["Group name is not specified", "This requires both group and event name to attach"],
        ),
        ("e:x ^kprobes.nosuch", ["Attached event does not exist"]),
        ("e ^kprobes/ev a=$b", ["Attached event does not exist"]),
        ("^e:x fprobes/exit a=$arg1 if a == 1", ["Event probes are not supported"]),
    ],
)
def test_pe8_5_carets_of_event_probes(machine, command, messages):
    """trace_eprobe.c attaches to no event of a line p or r; what it would attach to is refused as not supported."""
    tracefs = machine.tracefs
    tracefs.write("dynamic_events", "p:ev vfs_read b=%di\nf:exit vfs_read\n")
    tracefs.write("error_log", "")
    with pytest.raises(OSError) as refused:
        tracefs.write("dynamic_events", command.replace("^", ""), append=True)
    lines = tracefs.read("error_log").splitlines()
    tracefs.write("dynamic_events", "")
    assert [line.partition("event_probe: error: ")[2] for line in lines[::3]] == messages
    assert {len(line) - len("  Command: ^") for line in lines[2::3]} == {command.index("^")}
    numbers = {"Attached event does not exist": errno.ENODEV, "Event probes are not supported": errno.EOPNOTSUPP}
    assert refused.value.errno == numbers.get(messages[-1], errno.EINVAL)


def test_pe8_6_an_event_probe_has_at_most_128_arguments(machine):
    tracefs = machine.tracefs
    tracefs.write("error_log", "")
    for count, number in ((128, errno.ENODEV), (129, errno.E2BIG)):
        with pytest.raises(OSError) as refused:
            tracefs.write("dynamic_events", f"e:x a.b{' $c' * count} if d == 1", append=True)
        assert refused.value.errno == number
    assert tracefs.read("error_log").count("error:") == 1


ACCEPTED = [
    "%ax",
    "@linux_banner",
    "@0x1234",
    "@linux_banner+10",
    "@linux_banner-10",
    "$stack",
    "$stack0",
    "$stack1",
    "$comm",
    "$COMM",
    "+0(%ax)",
    "-0(%ax)",
    "+10($stack)",
    "+0($stack1)",
    "+10(@linux_banner-10)",
    "+0(+10(+20($stack)))",
    "varname=%ax",
    "%ax:x16",
    "$comm:string",
    "+0($stack):string",
    "+0(%ax)+10",
    "+-4(%di)",
    "\\1",
    "\\-1",
    "\\+1",
    "\\0x10:s8",
    '\\"abc"',
    '\\""',
    "\\1:string[2]",
    "\\1:ustring[1]",
    "\\1:string",
    "+0(%di):u8[64]",
    "+0(%di):string[0x4]",
    "+u0(%di):string[2]",
    "%ip:symbol",
    "+0(%di):ustring[2]",
    "%ax:symstr",
    "@linux_banner:symstr",
    "$arg01",
    "$arg1:u8",
    "x=$arg7",
    "+0($arg2)",
    "+0(%di)x:u8",
    "file->f_mode",
    "+0(%di):b4@4/32",
    "%di:b4@0/32",
    "buf:string",
    "buf:ustring",
    "count:u8",
    "file->f_path.dentry",
    "file->f_op->llseek",
    "count:string",
]
REJECTED = [
    "%ex",
    "@",
    "@BADSYM",
    "@linux_banner*10",
    "@linux_banner/10",
    "@linux_banner%10",
    "@linux_banner&10",
    "$stackp",
    "$stack0+10",
    "$stack1-10",
    "+(%ax)",
    "(%ax+10)",
    "-(%ax)",
    "(%ax)",
    "+10($comm)",
    "varname=varname2=%ax",
    "%ax::x16",
    "%ax:y16",
    "x16:%ax",
    "$comm:x64",
    "$stack:string",
    "%ax:string",
    "%rax",
    "%",
    "+u0(%di):u8[4]",
    "%di:symstr[2]",
    "$stack:symstr",
    "\\1:symstr",
    "+u0(%di):symstr",
    '\\"a":u8',
    '\\"',
    "$comm:string[2]",
    "$arg1:string",
    "%di:char[2]",
    "%di:b4@0",
]


@pytest.mark.parametrize("argument", sampled(ACCEPTED, 8))
def test_pe8_7_arguments_that_are_accepted_read_back_as_the_same(machine, argument):
    tracefs = machine.tracefs
    tracefs.write("kprobe_events", f"p:ev vfs_read {argument}")
    line = tracefs.read("kprobe_events")
    tracefs.write("kprobe_events", line)
    assert tracefs.read("kprobe_events") == line
    tracefs.write("kprobe_events", "-:ev", append=True)


@pytest.mark.parametrize("argument", sampled(REJECTED, 15))
def test_pe8_7_arguments_that_are_rejected(machine, argument):
    with pytest.raises(OSError):
        machine.tracefs.write("kprobe_events", f"p:ev vfs_read {argument}")
    assert machine.tracefs.read("kprobe_events") == ""


@pytest.mark.parametrize(
    "line, message",
    [
        ("p:ev schedule hoge", "No BTF entry for this probe point"),
        ("p:ev schedule $arg1 hoge", "This variable is not found at this probe point"),
        ("r:ev schedule hoge $arg2", "This variable is not found at this probe point"),
        ("p:ev schedule+1 hoge", "BTF is not available or not supported"),
    ],
)
def test_pe4_12_a_name_at_a_function_without_parameters(machine, line, message):
    """The kernel asks whether there are parameters when it first looks for the prototype, and a `$argN` makes it look."""
    machine.tracefs.write("error_log", "")
    with pytest.raises(OSError):
        machine.tracefs.write("kprobe_events", line, append=True)
    assert f"error: {message}\n" in machine.tracefs.read("error_log")


@pytest.mark.parametrize("words, carets", [("^$arg*", (11, 11)), ("%zz $arg*", (15, 11)), ("$arg1 $arg*", (17, 17))])
def test_pe4_12_all_parameters_of_a_function_that_has_none_log_two_errors(machine, words, carets):
    """The kernel logs the first, goes on, and fails at the first argument that it cannot parse."""
    machine.tracefs.write("error_log", "")
    with pytest.raises(OSError):
        machine.tracefs.write("kprobe_events", f"p schedule {words.replace('^', '')}", append=True)
    lines = machine.tracefs.read("error_log").splitlines()
    assert "BTF is not available or not supported" in lines[0] and len(lines) == 6
    assert tuple(len(line) - len("  Command: ^") for line in lines[2::3]) == carets


def test_pe4_12_an_abbreviation_of_a_dentry_is_expanded_before_the_second_error(machine):
    machine.tracefs.write("error_log", "")
    with pytest.raises(OSError):
        machine.tracefs.write("kprobe_events", "p schedule $arg*:%pd", append=True)
    lines = machine.tracefs.read("error_log").splitlines()
    assert lines[4] == "  Command: p schedule +0x0(+0x28($arg*)):string"
    assert lines[5].index("^") == lines[4].index("$")


CHAIN = "p" + "->n" * 13
"""13 reads: a fetch has 15 steps, and the parameter is the first."""


@pytest.fixture(scope="module")
def chain(machine, tmp_path_factory):
    source = tmp_path_factory.mktemp("chain") / "chain.c"
    source.write_text(
        "struct n { struct n *n; char *s; unsigned a : 3, b : 3; };\n"
        "__attribute__((noipa)) int walk(struct n *p) { return p->a; }\n"
    )
    module = sandbox.load(source, name="chain")
    yield machine.tracefs
    module.unload()


@pytest.mark.parametrize(
    "argument, number, message",
    [
        (f"{CHAIN}->n", 0, ""),
        (f"{CHAIN}->n:u8", 0, ""),
        (f"{CHAIN}->s:string", errno.E2BIG, "Dereference is too much nested"),
        (f"{CHAIN}:u8[4]", 0, ""),
        (f"{CHAIN}->n:u8[4]", errno.E2BIG, "Dereference is too much nested"),
        (f"{CHAIN}->n:symstr", errno.EINVAL, "Dereference is too much nested"),
        (f"{CHAIN}->n:b4@4/32", errno.EINVAL, "Invalid bitfield"),
        (f"{CHAIN}->b", errno.EINVAL, "Dereference is too much nested"),
        (f"{CHAIN}:b4@4/32[2]", errno.E2BIG, "Dereference is too much nested"),
        (f"{CHAIN}->n->n", errno.EINVAL, "Dereference is too much nested"),
    ],
)
def test_pe8_5_what_is_stored_takes_a_step_as_a_read_does(chain, argument, number, message):
    chain.write("error_log", "")
    try:
        chain.write("kprobe_events", f"p:ev chain:walk a={argument}")
        got = 0
    except OSError as refused:
        got = refused.errno
    chain.write("kprobe_events", "")
    assert got == number
    assert message in chain.read("error_log") and bool(message) == bool(chain.read("error_log"))


@pytest.mark.parametrize(
    "path, command",
    [
        ("kprobe_events", "p vfs_read ^\u00e9=%di"),
        ("kprobe_events", 'p vfs_read a=\\"\u00e9\u20ac" b=^%zz'),
        ("events/kprobes/ev/filter", 'common_pid == "^\u20ac"'),
        ("events/kprobes/ev/filter", 'comm == "\u20ac" && n ^== 11'),
        ("events/kprobes/ev/trigger", "hist:keys=a:\u20ac=a:sort=^nosuch"),
    ],
)
def test_pe8_2_carets_count_bytes(machine, path, command):
    """The kernel knows no characters: `wc -c` of the last line tells where the error is."""
    tracefs = machine.tracefs
    tracefs.write("dynamic_events", "p:ev vfs_read a=%di")
    tracefs.write("error_log", "")
    before, _, after = command.partition("^")
    with pytest.raises(OSError):
        tracefs.write(path, before + after, append=True)
    assert _caret(tracefs.read("error_log")) == len(before.encode())
    if path.endswith("filter"):
        assert tracefs.read(path).splitlines()[1].index("^") == len(before.encode())
    tracefs.write("dynamic_events", "")
