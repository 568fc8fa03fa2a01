"""The example of Documentation/trace/kprobetrace.rst, each command as it is written, with the output of Linux 6.12."""

from __future__ import annotations

import re

from isolation import isolated

DEFINITIONS = r"""
echo 'p:myprobe do_sys_open dfd=%ax filename=%dx flags=%cx mode=+4($stack)' > /sys/kernel/tracing/kprobe_events
echo 'r:myretprobe do_sys_open $retval' >> /sys/kernel/tracing/kprobe_events
"""
ENABLE = """
echo 1 > /sys/kernel/tracing/events/kprobes/myprobe/enable
echo 1 > /sys/kernel/tracing/events/kprobes/myretprobe/enable
"""
FORMAT = r"""name: myprobe
ID: N
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:unsigned long __probe_ip;	offset:8;	size:8;	signed:0;
	field:u64 dfd;	offset:16;	size:8;	signed:0;
	field:u64 filename;	offset:24;	size:8;	signed:0;
	field:u64 flags;	offset:32;	size:8;	signed:0;
	field:u64 mode;	offset:40;	size:8;	signed:0;

print fmt: "(%lx) dfd=0x%Lx filename=0x%Lx flags=0x%Lx mode=0x%Lx", REC->__probe_ip, REC->dfd, REC->filename, REC->flags, REC->mode
"""  # noqa: E501
RECORDS = (
    r"myprobe: \(do_sys_open\+0x0/0x[0-9a-f]+ \[demo\]\) dfd=0x[0-9a-f]+ filename=0x[0-9a-f]+ flags=0x[0-9a-f]+ mode=0x[0-9a-f]+",
    r"myretprobe: \(__x64_sys_open\+0x[0-9a-f]+/0x[0-9a-f]+ \[demo\] <- do_sys_open \[demo\]\) arg1=-?(0x)?[0-9a-f]+",
)


def _shell():
    from fprobe.tracefs import tracefs
    from tests.busybox.commands import Commands
    from tests.busybox.files import Files
    from tests.busybox.shell import Shell, Sink

    shell = Shell(Files(tracefs), Commands().run)

    def run(script):
        out, err = Sink(), Sink()
        assert shell.run(script.strip(), out, err) == 0, err.data
        return out.data.decode()

    return run


@isolated
def test_the_example():
    import sandbox
    import sandbox.demo

    module, run = sandbox.load(sandbox.demo.source(), name="demo"), _shell()
    run(DEFINITIONS)
    shown = run("cat /sys/kernel/tracing/events/kprobes/myprobe/format")
    assert re.sub(r"^ID: \d+$", "ID: N", shown, flags=re.MULTILINE) == FORMAT
    run(ENABLE)
    run("echo 1 > /sys/kernel/tracing/tracing_on")
    module["demo_main"](1)
    run("echo 0 > /sys/kernel/tracing/tracing_on")
    lines = [line for line in run("cat /sys/kernel/tracing/trace").splitlines() if not line.startswith("#")]
    assert lines and not len(lines) % 2
    for index, line in enumerate(lines[:2]):
        text = line.partition(": ")[2]
        assert re.fullmatch(RECORDS[index], text), text
    run("echo 0 > /sys/kernel/tracing/events/kprobes/enable")
    run("echo -:myprobe >> /sys/kernel/tracing/kprobe_events")
    assert re.fullmatch(
        r"r\d+:kprobes/myretprobe do_sys_open arg1=\$retval\n", run("cat /sys/kernel/tracing/kprobe_events")
    )
    run("echo > /sys/kernel/tracing/kprobe_events")
    assert run("cat /sys/kernel/tracing/kprobe_events") == ""


@isolated
def test_maxactive_0_is_refused_though_the_document_has_it_as_the_default():
    import errno

    import pytest

    import sandbox
    import sandbox.demo
    from fprobe.tracefs import tracefs

    sandbox.load(sandbox.demo.source(), name="demo")
    with pytest.raises(OSError, match="Invalid maxactive number") as caught:
        tracefs.write("kprobe_events", "r0:myretprobe do_sys_open $retval")
    assert caught.value.errno == errno.EINVAL
