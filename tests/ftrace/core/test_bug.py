"""ftrace_bug's report, ftrace_kill and what is left after it: FT-67..70, FP-46."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import errno
import logging
import os
import re

import pytest
from isolation import isolated
from programs import basic, is_patched, site_of, text_of

from ftrace.core.dyn_ftrace import bug, bug_report
from ftrace.core.tracer import tracer

RULE = "------------[ ftrace bug ]------------"


def write_like_a_debugger(address, data):
    """Through /proc/self/mem, past every protection: the page becomes a copy."""
    with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123
        os.pwrite(memory.fileno(), data, address)


def location(program):
    return tracer().table.location(site_of(program, "leaf"))


@pytest.mark.parametrize(
    ("failed", "said"),
    [
        (errno.EFAULT, "ftrace faulted on modifying "),
        (errno.EPERM, "ftrace faulted on writing "),
        (errno.EIO, "ftrace faulted on unknown error "),
    ],
)
def test_ft67_what_could_not_be_done(program, failed, said):
    lines = bug_report.bug_report(failed, tracer().record_at(location(program)), bug_report.TO_CALL).splitlines()
    ip = site_of(program, "leaf")
    size = program.symbol("leaf").size
    assert lines[:4] == [RULE, said, f"[<{ip:016x}>] leaf+0x0/{size:#x} [{program.name}]", bug_report.TO_CALL]


def test_ft67_unexpected_bytes_are_shown_with_those_expected(program):
    report = bug_report.bug_report(
        errno.EINVAL,
        tracer().record_at(location(program)),
        bug_report.INITIALISING,
        expected=bytes.fromhex("e811223344"),
    )
    lines = report.splitlines()
    assert lines[1] == "ftrace failed to modify "
    assert lines[3:6] == [" actual:   0f:1f:44:00:00", " expected: e8:11:22:33:44", bug_report.INITIALISING]


def test_ft68_the_records_flags_and_trampoline(program):
    import fprobe

    lines = bug_report.bug_report(errno.EPERM, tracer().record_at(location(program)), bug_report.TO_CALL).splitlines()[
        4:
    ]
    assert re.fullmatch(r"ftrace record flags: [0-9a-f]+", lines[0]) and lines[1] == " (0)  "
    with fprobe.attach("leaf", action=fprobe.Count()):
        lines = bug_report.bug_report(
            errno.EPERM, tracer().record_at(location(program)), bug_report.TO_NOP
        ).splitlines()[4:]
    flags = int(lines[0].rpartition(" ")[2], 16)
    assert flags & 0x7FFFF == 1 and flags >> 31 and flags >> 30 & 1  # the count, ENABLED, REGS
    trampoline = re.fullmatch(r" \(1\) R\ttramp: (0x[0-9a-f]+) \(fprobe_handler\+0x0/0x0\)", lines[1])
    assert lines[2:] == [f" expected tramp: {int(trampoline[1], 16):x}"]


@isolated
def test_ft67_ft68_ft58_a_foreign_breakpoint_is_reported_and_the_change_refused():
    """Nothing has been written, so ftrace lives on (a deviation from FT-69)."""
    import fprobe

    module = basic()
    logged = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())
    logging.getLogger("ftrace").addHandler(handler)
    site = site_of(module, "leaf")
    write_like_a_debugger(site, b"\xcc")
    before = text_of(module)
    for doing in (bug_report.TO_CALL, bug_report.TO_NOP):
        if doing == bug_report.TO_NOP:
            write_like_a_debugger(site, b"\x0f")
            probe = fprobe.attach("leaf", action=fprobe.Count()).attach()
            jump = module.texts[0].read(site, 5)
            write_like_a_debugger(site, b"\xcc")
        else:
            probe = fprobe.attach("leaf", action=fprobe.Count())
        with pytest.raises(OSError) as caught:
            probe.detach() if doing == bug_report.TO_NOP else probe.attach()
        assert caught.value.errno == errno.EINVAL
        lines = logged.pop().splitlines()
        assert lines[:2] == [RULE, "ftrace failed to modify "] and lines[5] == doing
        expected = "0f:1f:44:00:00" if doing == bug_report.TO_CALL else jump.hex(":")
        assert lines[3:5] == [f" actual:   cc{expected[2:]}", f" expected: {expected}"]
        assert not bug.ftrace_is_dead()
        if doing == bug_report.TO_CALL:
            assert text_of(module) == before
    write_like_a_debugger(site, jump)
    probe.detach()


@isolated
def test_ft69_text_that_cannot_be_written_kills_ftrace():
    import fprobe
    from sandbox.memory import mappings as memory

    module = basic()
    write_like_a_debugger(site_of(module, "leaf"), b"\x0f")  # the page is a copy now, which the alias does not reach
    memory.write_through_kernel = lambda *_: None
    with pytest.raises(OSError, match="was written, but holds"):
        fprobe.attach("leaf", action=fprobe.Count()).attach()
    assert bug.ftrace_is_dead()
    with pytest.raises(OSError) as caught:
        fprobe.attach("other", action=fprobe.Count()).attach()
    assert caught.value.errno == errno.ENODEV


@isolated
def test_ft69_ftrace_bug_kills():
    module = basic()
    bug.ftrace_bug(errno.EFAULT, location(module))
    assert tracer().dead


@isolated
def test_ft70_fp46_after_ftrace_kill():
    import fprobe
    from fprobe.registration import register_fprobe, unregister_fprobe
    from ftrace.core.filters.lookup import available_filter_functions, enabled_functions, touched_functions
    from ftrace.core.filters.set_ftrace_filter import FilterFile, read_filter
    from ftrace.core.ops import ftrace_ops, ftrace_set_filter, ftrace_set_filter_ip, register_ftrace_function
    from ftrace.core.ops import unregister_ftrace_function as unregister
    from ftrace.tracing.files.sysctl import ftrace_enabled, set_ftrace_enabled

    module = basic()
    entered, left, seen = [], [], []
    fp = fprobe.fprobe(lambda *hit: entered.append(1) and None, lambda *hit: left.append(1))
    register_fprobe(fp, "leaf")
    ops = ftrace_ops(lambda *hit: seen.append(1))
    ftrace_set_filter(ops, "other")
    register_ftrace_function(ops)
    assert enabled_functions()
    bug.ftrace_kill()
    assert ftrace_enabled() == 0 and bug.ftrace_is_dead()
    for listing in (available_filter_functions, enabled_functions, touched_functions):
        assert listing() == ""
    later = ftrace_ops(lambda *hit: None)
    for attempt in (
        lambda: register_ftrace_function(later),
        lambda: unregister(ops),
        lambda: ftrace_set_filter(ops, "leaf"),
        lambda: ftrace_set_filter_ip(ops, site_of(module, "leaf")),
        lambda: set_ftrace_enabled(1),
        lambda: register_fprobe(fprobe.fprobe(), "leaf"),
        FilterFile,
        read_filter,
    ):
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == errno.ENODEV
    assert module["other"](1) == 3 and seen == [1]  # what is patched goes on calling
    assert module["leaf"](1) == 2 and (entered, left) == ([1], [1])
    with pytest.raises(OSError) as caught:
        unregister_fprobe(fp)
    assert caught.value.errno == errno.ENODEV
    assert fp.registered and fp.nmissed == 0
    assert module["leaf"](1) == 2 and (entered, left) == ([1], [1]) and fp.nmissed == 1  # stopped all the same


@isolated
def test_ft58_of_several_modules_none_is_written_if_one_has_a_foreign_byte():
    import fprobe
    from ftrace.core.sites.block import SiteBlock

    first, second = basic(), basic()
    write_like_a_debugger(site_of(second, "other"), b"\xcc")
    patched = []
    apply = SiteBlock.apply

    def noted(block, *rest):
        apply(block, *rest)
        patched.append(is_patched(first, "other"))

    SiteBlock.apply = noted
    with pytest.raises(OSError) as caught:
        fprobe.attach("other", action=fprobe.Count()).attach()
    assert caught.value.errno == errno.EINVAL and not any(patched)
    write_like_a_debugger(site_of(second, "other"), b"\x0f")
    with fprobe.attach("other", action=fprobe.Count()) as probe:
        first["other"](1)
        second["other"](1)
    assert probe.hits == 2 and any(patched)


@isolated
def test_a_live_filter_change_that_fails_leaves_filter_and_sites_as_they_were():
    from ftrace.core.ops import ftrace_ops, ftrace_set_filter, register_ftrace_function, unregister_ftrace_function

    module, second = basic(), basic()
    seen = []
    ops = ftrace_ops(lambda ip, *rest: seen.append(ip))
    ftrace_set_filter(ops, "leaf")
    register_ftrace_function(ops)
    write_like_a_debugger(site_of(second, "other"), b"\xcc")
    before = text_of(module)
    for reset in (False, True):
        with pytest.raises(OSError):
            ftrace_set_filter(ops, "other", reset)
        assert sorted(location.name for location in ops.selection().each()) == ["leaf", "leaf"]
        assert text_of(module) == before
    module["leaf"](1)
    assert seen == [site_of(module, "leaf")]
    unregister_ftrace_function(ops)
    assert not is_patched(module, "leaf") and not is_patched(second, "leaf")
    write_like_a_debugger(site_of(second, "other"), b"\x0f")


@isolated
def test_ft70_modules_can_be_unloaded_from_a_dead_ftrace():
    import fprobe

    module = basic()
    fprobe.attach("leaf", action=fprobe.Count()).attach()
    bug.ftrace_kill()
    module.unload()
    assert not tracer().table.blocks
