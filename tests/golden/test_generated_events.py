"""Synthetic events as the kernel's transcripts would show them: whose they are, and when (TE-8.9)."""

from __future__ import annotations

import re

from tests.golden.replay import Replayer, run_step
from tests.golden.transcript import normalised, parse

STEPS = """\
$ echo 'p:a __sys_listen fd=%di:s32 bl=%si:s32
> r:b __sys_listen fd=$arg1:s32 ret=$retval:s32' > kprobe_events
$ echo 'lat u64 d; s32 fd; s32 ret; char who[]; s8 small' > synthetic_events
$ echo 'hist:keys=fd:ts=common_timestamp.usecs,c=common_pid.execname' > events/kprobes/a/trigger
$ echo 'hist:keys=fd:d=common_timestamp.usecs-$ts:onmatch(kprobes.a).lat($d,fd,ret,$c)' > events/kprobes/b/trigger
! EINVAL
$ echo 'lat u64 d; s32 fd; s32 ret; char who[]' > synthetic_events
$ echo 'hist:keys=fd:d=common_timestamp.usecs-$ts:onmatch(kprobes.a).lat($d,fd,ret,$c)' > events/kprobes/b/trigger
$ echo '!lat' >> synthetic_events
! EBUSY
$ cat trace_clock
local [global] counter uptime perf mono mono_raw boot tai x86-tsc
$ echo '1' > events/synthetic/enable
$ echo '1' > events/kprobes/enable
$ hit listen 3 10 , listen 4 20
$ echo '0' > events/enable
"""
CLEAN_UP = """\
$ echo '!hist:keys=fd:d=common_timestamp.usecs-$ts:onmatch(kprobes.a).lat($d,fd,ret,$c)' >> events/kprobes/b/trigger
$ echo '!hist:keys=fd:ts=common_timestamp.usecs,c=common_pid.execname' >> events/kprobes/a/trigger
$ echo '' > synthetic_events
$ echo 'local' > trace_clock
"""


def test_te8_9_generated_events_follow_their_hit_and_are_of_its_thread(machine):
    replayer = Replayer(machine)
    for step in parse(STEPS):
        assert run_step(replayer, step) == step
    lines = [normalised(line) for line in machine.tracefs.read("trace").splitlines() if not line.startswith("#")]
    for step in parse(CLEAN_UP):
        assert run_step(replayer, step) == step
    found = [re.sub(r" d=\d+", "", line).removeprefix("hit-PID [CPU] FLAGS TIME: ") for line in lines]
    expected = []
    for fd, backlog in ((3, 10), (4, 20)):
        expected += [
            f"a: (__sys_listen+OFF/SIZE) fd={fd} bl={backlog}",
            f"b: (__x64_sys_listen+OFF/SIZE <- __sys_listen) fd={fd} ret=-9",
            f"lat: fd={fd} ret=-9 who=hit",
        ]
    assert found == expected
