"""register_fprobe and its relatives: FP-10..28, FP-41..53."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import errno

import pytest
from programs import basic, is_patched, site_of, text_of
from sampled import in_stress

import fprobe
from fprobe.registration import functions_of
from sandbox.process.cpus import num_possible_cpus


@pytest.fixture(scope="module")
def program():
    module = basic()
    yield module
    module.unload()


@pytest.fixture
def fp():
    probe = fprobe.fprobe(lambda *hit: 0)
    yield probe
    if probe.registered:
        fprobe.unregister_fprobe(probe)


def names(probe) -> list[str]:
    return [location.name for location in functions_of(probe).each()]


def fails(code: int, call, *arguments) -> None:
    with pytest.raises(OSError) as caught:
        call(*arguments)
    assert caught.value.errno == code, caught.value


def never(*hit):
    raise AssertionError("called")


def test_fp10_without_fprobe_or_filter(program, fp):
    fails(errno.EINVAL, fprobe.register_fprobe, None, "leaf")
    fails(errno.EINVAL, fprobe.register_fprobe, fp, None)
    assert not fp.registered


def test_fp10_nmissed_is_reset_even_if_registration_fails(program):
    probe = fprobe.fprobe(None, lambda *hit: None, nr_maxactive=1)
    fprobe.register_fprobe(probe, "factorial")
    program["factorial"](4)
    fprobe.unregister_fprobe(probe)
    assert probe.nmissed == 3
    fails(errno.EINVAL, fprobe.register_fprobe, probe, "no_such_function")
    assert probe.nmissed == 0


def test_fp10_syms_reset_nmissed_only_once_the_names_were_found(program):
    probe = fprobe.fprobe(None, lambda *hit: None, nr_maxactive=1)
    fprobe.register_fprobe(probe, "factorial")
    program["factorial"](3)
    fprobe.unregister_fprobe(probe)
    fails(errno.ENOENT, fprobe.register_fprobe_syms, probe, ["no_such_function"])
    assert probe.nmissed == 2


@pytest.mark.parametrize(
    "pattern", ["no_such_function", in_stress("no_such*"), "", in_stress("!no_such*"), in_stress("0"), "100000"]
)
def test_fp11_a_filter_that_matches_nothing(program, fp, pattern):
    fails(errno.EINVAL, fprobe.register_fprobe, fp, pattern)
    assert not fp.registered and not fp.ops.filter_hash


@pytest.mark.parametrize("wrong", [5, b"leaf", ["leaf"]])
def test_a_pattern_that_is_no_text_is_a_type_error_and_nothing_is_changed(program, fp, wrong):
    for arguments in ((wrong, None), ("leaf", wrong)):
        with pytest.raises(TypeError, match="it must be a str"):
            fprobe.register_fprobe(fp, *arguments)
        assert not fp.registered and not fp.ops.filter_hash and not is_patched(program, "leaf")


def test_fp11_a_notfilter_that_matches_nothing_undoes_everything(program, fp):
    before = text_of(program)
    fails(errno.EINVAL, fprobe.register_fprobe, fp, "leaf", "no_such*")
    assert not fp.registered and not fp.ops.filter_hash and not fp.ops.notrace_hash
    assert text_of(program) == before


def test_fp11_index_numbers_select_by_position(program, fp):
    from ftrace.core.tracer import tracer

    position = 1 + [location.name for location in tracer().table.everything().each()].index("leaf")
    fprobe.register_fprobe(fp, str(position))
    assert names(fp) == ["leaf"]


def test_fp12_notfilter_is_matched_against_all_functions(program, fp):
    fprobe.register_fprobe(fp, "leaf", "other")
    assert names(fp) == ["leaf"]


def test_fp13_all_excluded_registers_and_nothing_fires(program):
    probe = fprobe.fprobe(never)
    fprobe.register_fprobe(probe, "leaf", "leaf")
    assert probe.registered and names(probe) == []
    assert not is_patched(program, "leaf")
    assert program["leaf"](1) == 2
    fprobe.unregister_fprobe(probe)
    assert probe.hits == 0 and probe.errors.count == 0


def test_fp14_fp26_the_default_pool_counts_the_filter_without_notfilter(program):
    probe = fprobe.fprobe(None, lambda *hit: None)
    fprobe.register_fprobe(probe, "[lo]*", "other")
    try:
        assert probe.ops.probe.native.nr_nodes == 3 * num_possible_cpus() * 2
    finally:
        fprobe.unregister_fprobe(probe)


@pytest.mark.parametrize("pattern", ["!leaf", "!*"])
def test_fp15_a_filter_that_only_removes(program, fp, pattern):
    fails(errno.EINVAL, fprobe.register_fprobe, fp, pattern)
    assert not fp.registered


def test_fp16_addresses_of_sites_and_of_functions(program, fp):
    addresses = [program.symbol("leaf").address, site_of(program, "other") + 4, site_of(program, "other")]
    given = list(addresses)
    fprobe.register_fprobe_ips(fp, addresses)
    assert names(fp) == ["leaf", "other"] and addresses == given


def test_fp16_duplicates_count_for_the_pool(program):
    probe = fprobe.fprobe(None, lambda *hit: None)
    fprobe.register_fprobe_ips(probe, [site_of(program, "leaf")] * 3)
    try:
        assert probe.ops.probe.native.nr_nodes == 3 * num_possible_cpus() * 2
    finally:
        fprobe.unregister_fprobe(probe)


def test_fp16_an_address_without_location_registers_nothing(program, fp):
    inside = program.symbol("leaf").address + 6
    fails(errno.EINVAL, fprobe.register_fprobe_ips, fp, [site_of(program, "leaf"), inside])
    assert not fp.registered and not is_patched(program, "leaf")


@pytest.mark.parametrize("arguments", [(None,), ([],), ([1], 0), ([1], -1)])
def test_fp16_fp17_nothing_to_register(program, fp, arguments):
    fails(errno.EINVAL, fprobe.register_fprobe_ips, fp, *arguments)
    fails(errno.EINVAL, fprobe.register_fprobe_syms, fp, *arguments)
    fails(errno.EINVAL, fprobe.register_fprobe_ips, None, [1])
    fails(errno.EINVAL, fprobe.register_fprobe_syms, None, ["leaf"])


def test_fp16_fp17_num_beyond_the_array_is_refused(program, fp):
    fails(errno.EINVAL, fprobe.register_fprobe_ips, fp, [site_of(program, "leaf")], 2)
    fails(errno.EINVAL, fprobe.register_fprobe_syms, fp, ["leaf"], 2)


def test_fp17_names_are_sorted_in_place(program, fp):
    wanted = ["twice", "leaf", "other"]
    fprobe.register_fprobe_syms(fp, wanted)
    assert wanted == ["leaf", "other", "twice"] and sorted(names(fp)) == wanted


def test_fp17_names_are_sorted_also_on_failure(program, fp):
    wanted = ["twice", "no_such", "leaf"]
    fails(errno.ENOENT, fprobe.register_fprobe_syms, fp, wanted)
    assert wanted == ["leaf", "no_such", "twice"] and not fp.registered


@pytest.mark.parametrize("wanted", [["leaf", "leaf"], ["le*"], ["Leaf"], ["leaf", "nothing"]])
def test_fp17_unknown_duplicate_and_patterns_are_enoent(program, fp, wanted):
    fails(errno.ENOENT, fprobe.register_fprobe_syms, fp, wanted)
    assert not fp.registered


def test_fp17_only_num_names_are_taken(program, fp):
    wanted = ["twice", "leaf", "no_such"]
    fprobe.register_fprobe_syms(fp, wanted, 2)
    assert names(fp) == ["leaf", "twice"] and wanted == ["leaf", "twice", "no_such"]


def test_fp18_a_failure_after_the_filter_leaves_nothing(program):
    probe = fprobe.fprobe(None, lambda *hit: None, nr_maxactive=-1)
    fails(errno.EINVAL, fprobe.register_fprobe, probe, "leaf")
    assert not probe.registered and not probe.ops.filter_hash
    assert not is_patched(program, "leaf")
    fails(errno.EINVAL, fprobe.unregister_fprobe, probe)


def test_fp20_double_registration_has_no_side_effects(program):
    probe = fprobe.fprobe(None, lambda *hit: None, nr_maxactive=1)
    fprobe.register_fprobe(probe, "factorial")
    program["factorial"](4)
    for register, target in (
        (fprobe.register_fprobe, "leaf"),
        (fprobe.register_fprobe_ips, [site_of(program, "leaf")]),
        (fprobe.register_fprobe_syms, ["leaf"]),
    ):
        fails(errno.EBUSY, register, probe, target)
    assert probe.nmissed == 3 and names(probe) == ["factorial"]
    assert not is_patched(program, "leaf")
    fprobe.unregister_fprobe(probe)
    assert probe.counts.hits == 4


def test_fp21_two_probes_newest_first_and_exits_reversed(program):
    order = []
    probes = []
    for label in "abc":
        probe = fprobe.fprobe(
            lambda *hit, label=label: order.append("entry " + label),
            lambda *hit, label=label: order.append("exit " + label),
        )
        fprobe.register_fprobe(probe, "leaf")
        probes.append(probe)
    program["leaf"](1)
    for probe in probes:
        fprobe.unregister_fprobe(probe)
    assert order == ["entry c", "entry b", "entry a", "exit a", "exit b", "exit c"]


def test_fp25_without_exit_handler_there_is_no_pool(program, fp):
    fp.nr_maxactive = -5  # not looked at
    fprobe.register_fprobe(fp, "factorial")
    assert fp.ops.probe.native.nr_nodes == 0
    program["factorial"](50)
    assert fp.hits == 50 and fp.nmissed == 0


@pytest.mark.parametrize("size", [-1, 1 << 31, 1 << 40])
def test_fp26_impossible_pool_sizes(program, size):
    probe = fprobe.fprobe(None, lambda *hit: None, nr_maxactive=size)
    fails(errno.EINVAL, fprobe.register_fprobe, probe, "leaf")


@pytest.mark.parametrize("size", [-1, (1 << 18) + 1, 1 << 40])
def test_fp26_impossible_entry_data_sizes(program, size):
    """As much as a thread has for all its calls, and no more."""
    probe = fprobe.fprobe(None, lambda *hit: None, entry_data_size=size)
    fails(errno.ENOMEM, fprobe.register_fprobe, probe, "leaf")
    assert not probe.registered and not is_patched(program, "leaf")
    probe.exit_handler, probe.entry_handler = None, lambda *hit: 0  # not looked at
    fprobe.register_fprobe(probe, "leaf")
    fprobe.unregister_fprobe(probe)


def test_fp41_fp42_none_is_allowed():
    fprobe.disable_fprobe(None)
    fprobe.enable_fprobe(None)
    assert fprobe.fprobe_disabled(None) is False
    assert fprobe.fprobe_is_registered(None) is False


def test_fp41_disable_keeps_the_sites_patched_and_counts_nothing(program):
    hits = []
    probe = fprobe.fprobe(lambda *hit: hits.append(1))
    fprobe.register_fprobe(probe, "leaf")
    fprobe.disable_fprobe(probe)
    assert fprobe.fprobe_disabled(probe) and is_patched(program, "leaf")
    program["leaf"](1)
    fprobe.enable_fprobe(probe)
    assert not fprobe.fprobe_disabled(probe)
    program["leaf"](1)
    fprobe.unregister_fprobe(probe)
    assert len(hits) == 1 and probe.counts.hits == 1 and probe.nmissed == 0


def test_fp2_registered_as_disabled(program):
    hits = []
    probe = fprobe.fprobe(lambda *hit: hits.append(1), flags=fprobe.FPROBE_FL_DISABLED)
    fprobe.register_fprobe(probe, "leaf")
    program["leaf"](1)
    fprobe.enable_fprobe(probe)
    program["leaf"](1)
    fprobe.unregister_fprobe(probe)
    assert len(hits) == 1


def test_fp43_unregister_what_was_never_registered(program, fp):
    fails(errno.EINVAL, fprobe.unregister_fprobe, None)
    fails(errno.EINVAL, fprobe.unregister_fprobe, fp)


def test_fp43_second_unregister_is_busy(program, fp):
    fprobe.register_fprobe(fp, "leaf")
    fprobe.unregister_fprobe(fp)
    fails(errno.EBUSY, fprobe.unregister_fprobe, fp)


def test_fp48_nmissed_survives_unregister_and_is_reset_by_register(program):
    probe = fprobe.fprobe(None, lambda *hit: None, nr_maxactive=1)
    fprobe.register_fprobe(probe, "factorial")
    program["factorial"](6)
    assert probe.nmissed == 5
    fprobe.unregister_fprobe(probe)
    assert probe.nmissed == 5
    fprobe.register_fprobe(probe, "factorial")
    assert probe.nmissed == 0
    fprobe.unregister_fprobe(probe)


def test_fp49_is_registered_stays_true(program, fp):
    assert not fprobe.fprobe_is_registered(fp)
    fprobe.register_fprobe(fp, "leaf")
    fprobe.unregister_fprobe(fp)
    assert fprobe.fprobe_is_registered(fp)


def test_fp52_fields_are_fixed_at_registration(program):
    seen = []
    probe = fprobe.fprobe(lambda fp, ip, ret, regs, data: seen.append(data))
    fprobe.register_fprobe(probe, "leaf")
    probe.exit_handler, probe.entry_data_size, probe.nr_maxactive = never, 64, 7
    assert program["leaf"](1) == 2
    fprobe.unregister_fprobe(probe)
    assert seen == [None] and probe.errors.count == 0


def test_fp53_the_same_object_again_starts_from_clean_filters(program):
    hits = []
    probe = fprobe.fprobe(lambda fp, ip, ret, regs, data: hits.append(ip))
    fprobe.register_fprobe(probe, "[lo]*", "loop")
    fprobe.unregister_fprobe(probe)
    fprobe.register_fprobe(probe, "l*")
    assert sorted(names(probe)) == ["leaf", "loop"]
    program["loop"](1)
    program["other"](1)
    fprobe.unregister_fprobe(probe)
    assert hits == [site_of(program, "loop"), site_of(program, "leaf")]


def test_fp54_text_is_as_loaded_after_each_unregister(program):
    before = text_of(program)
    for _ in range(20):
        probe = fprobe.fprobe(lambda *hit: 0, lambda *hit: None)
        fprobe.register_fprobe(probe, "*")
        assert text_of(program) != before
        fprobe.unregister_fprobe(probe)
        assert text_of(program) == before
