"""Hashes and registration of bare ops: FT-23..31, FT-36..40."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import errno

import pytest
from programs import is_patched, site_of

from ftrace.core import ops as ftrace
from ftrace.core.ops import ftrace_ops
from ftrace.core.ops_flags import FTRACE_OPS_FL_DELETED, FTRACE_OPS_FL_IPMODIFY
from ftrace.core.tracer import tracer
from ftrace.hit.records import MAX_PROBES_PER_SITE


@pytest.fixture
def ops():
    made = ftrace_ops()
    yield made
    if made.enabled:
        ftrace.unregister_ftrace_function(made)


def names(ops, program):
    return sorted(location.name for location in ops.selection().each() if location.block.module is program)


def register(ops, seen=None):
    """Register, noting the entry addresses that it is called for."""
    ops.func = lambda ip, parent, _ops, fregs: seen.append(ip) if seen is not None else None
    ftrace.register_ftrace_function(ops)


def fails(code, call, *arguments, **options):
    with pytest.raises(OSError) as caught:
        call(*arguments, **options)
    assert caught.value.errno == code


ALL = ["apply", "factorial", "leaf", "loop", "nine", "other", "twice"]


def test_ft23_empty_hashes_select_everything(program, ops):
    assert names(ops, program) == ALL


def test_ft23_notrace_wins(program, ops):
    ftrace.ftrace_set_filter(ops, "l*")
    ftrace.ftrace_set_notrace(ops, "leaf")
    assert names(ops, program) == ["loop"]
    ftrace.ftrace_set_filter(ops, None, reset=True)
    assert names(ops, program) == [name for name in ALL if name != "leaf"]


def test_ft25_filters_add_up_and_reset_starts_anew(program, ops):
    ftrace.ftrace_set_filter(ops, "leaf")
    ftrace.ftrace_set_filter(ops, "other")
    assert names(ops, program) == ["leaf", "other"]
    ftrace.ftrace_set_filter(ops, "twice", reset=True)
    assert names(ops, program) == ["twice"]


def test_ft25_no_match_leaves_the_hash_even_with_reset(program, ops):
    ftrace.ftrace_set_filter(ops, "leaf")
    for reset in (False, True):
        fails(errno.EINVAL, ftrace.ftrace_set_filter, ops, "nothing*", reset=reset)
        assert names(ops, program) == ["leaf"]


def test_ft26_addresses_all_or_none(program, ops):
    leaf, other = site_of(program, "leaf"), site_of(program, "other")
    ftrace.ftrace_set_filter_ips(ops, [leaf + 3])
    fails(errno.EINVAL, ftrace.ftrace_set_filter_ips, ops, [other, leaf + 6])
    assert names(ops, program) == ["leaf"]
    ftrace.ftrace_set_filter_ips(ops, [leaf, other])  # one is there already
    assert names(ops, program) == ["leaf", "other"]
    fails(errno.ENOENT, ftrace.ftrace_set_filter_ips, ops, [leaf, site_of(program, "twice")], remove=True)
    assert names(ops, program) == ["leaf", "other"]
    ftrace.ftrace_set_filter_ips(ops, [leaf], remove=True)
    assert names(ops, program) == ["other"]


def test_ft27_a_live_filter_only_the_difference_is_patched(program, ops):
    seen = []
    ftrace.ftrace_set_filter(ops, "leaf")
    register(ops, seen)
    ftrace.ftrace_set_filter(ops, "other", reset=True)
    assert not is_patched(program, "leaf") and is_patched(program, "other")
    program["twice"](1)
    program["other"](1)
    ftrace.ftrace_set_filter(ops, "twice")
    program["twice"](1)
    assert seen == [site_of(program, "other"), site_of(program, "twice")]
    ftrace.ftrace_set_notrace(ops, "other")
    assert not is_patched(program, "other") and is_patched(program, "twice")
    ftrace.ftrace_set_notrace(ops, None, reset=True)
    assert is_patched(program, "other")


@pytest.mark.stress
def test_ft27_a_filter_that_cannot_be_changed_to_leaves_the_sites_as_they_are(program, ops):
    seen = []
    full = [ftrace_ops(lambda *_: None) for _ in range(MAX_PROBES_PER_SITE)]
    for other in full:
        ftrace.ftrace_set_filter(other, "other")
        ftrace.register_ftrace_function(other)
    ftrace.ftrace_set_filter(ops, "leaf")
    register(ops, seen)
    fails(errno.ENOSPC, ftrace.ftrace_set_filter, ops, "other", reset=True)
    assert names(ops, program) == ["leaf"] and is_patched(program, "leaf")
    program["leaf"](1)
    assert seen == [site_of(program, "leaf")]
    for other in full:
        ftrace.unregister_ftrace_function(other)


def test_ft28_ipmodify_takes_no_notrace(program):
    ops = ftrace_ops(flags=FTRACE_OPS_FL_IPMODIFY)
    for pattern in ("leaf", "!leaf", None):
        fails(errno.EINVAL, ftrace.ftrace_set_notrace, ops, pattern)


def test_ft29_removing_the_last_address_means_everything(program, ops):
    ftrace.ftrace_set_filter(ops, "leaf")
    ftrace.ftrace_set_filter_ips(ops, [site_of(program, "leaf")], remove=True)
    assert names(ops, program) == ALL


def test_ft30_free_filter_empties_both(program, ops):
    ftrace.ftrace_set_filter(ops, "leaf")
    ftrace.ftrace_set_notrace(ops, "other")
    ftrace.ftrace_free_filter(ops)
    assert names(ops, program) == ALL


def test_ft35_negation_removes_and_succeeds_on_any_match(program, ops):
    ftrace.ftrace_set_filter(ops, "l*")
    ftrace.ftrace_set_filter(ops, "!loop")
    assert names(ops, program) == ["leaf"]
    ftrace.ftrace_set_filter(ops, "!other")  # matches, though it is not in the hash
    assert names(ops, program) == ["leaf"]
    fails(errno.EINVAL, ftrace.ftrace_set_filter, ops, "!nothing")


def test_ft36_order_of_the_checks(program, ops):
    ftrace.ftrace_set_filter(ops, "leaf")
    register(ops)
    fails(errno.EBUSY, register, ops)
    deleted = ftrace_ops(flags=FTRACE_OPS_FL_DELETED)
    fails(errno.EINVAL, register, deleted)
    assert not deleted.enabled


def test_ft36_ft39_a_dead_ftrace_refuses(program, monkeypatch):
    ops = ftrace_ops()
    monkeypatch.setattr(tracer(), "dead", True)
    fails(errno.ENODEV, register, ops)
    fails(errno.ENODEV, ftrace.unregister_ftrace_function, ops)
    fails(errno.ENODEV, ftrace.ftrace_set_filter, ops, "leaf")


def test_ft37_newest_registered_first(program):
    seen = []
    made = []
    for number in range(4):
        ops = ftrace_ops(lambda *hit, number=number: seen.append(number))
        ftrace.ftrace_set_filter(ops, "leaf")
        ftrace.register_ftrace_function(ops)
        made.append(ops)
    program["leaf"](1)
    ftrace.unregister_ftrace_function(made[2])
    program["leaf"](1)
    for ops in (made[0], made[3], made[1]):
        ftrace.unregister_ftrace_function(ops)
    assert seen == [3, 2, 1, 0, 3, 1, 0]


def test_ft39_unregister_what_is_not_registered(program, ops):
    fails(errno.EBUSY, ftrace.unregister_ftrace_function, ops)
    ftrace.ftrace_set_filter(ops, "leaf")
    register(ops)
    ftrace.unregister_ftrace_function(ops)
    fails(errno.EBUSY, ftrace.unregister_ftrace_function, ops)


@pytest.mark.stress
def test_1024_probes_on_a_function_and_no_more(program):
    import fprobe

    seen = []
    probes = []
    for number in range(MAX_PROBES_PER_SITE):
        probes.append(fprobe.attach("leaf", entry=lambda *hit, number=number: seen.append(number)).attach())
    with pytest.raises(OSError) as caught:
        fprobe.attach("l*", entry=print).attach()
    assert caught.value.errno == errno.ENOSPC
    assert not is_patched(program, "loop")  # undone everywhere
    program["leaf"](1)
    assert MAX_PROBES_PER_SITE == 1024 and seen == list(range(1023, -1, -1))
    for probe in probes:
        probe.detach()
