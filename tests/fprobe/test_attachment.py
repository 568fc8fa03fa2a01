"""attach(): context manager, decorator, filters of thread and hits, actions."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import threading

import pytest
from programs import basic, is_patched, site_of

import fprobe
import kprobes


@pytest.fixture(scope="module")
def program():
    module = basic()
    yield module
    module.unload()


def test_context_manager_attaches_inside_the_block_only(program):
    with fprobe.attach("leaf", entry=lambda *hit: 0) as probe:
        assert is_patched(program, "leaf")
        program["leaf"](1)
    assert not is_patched(program, "leaf")
    program["leaf"](1)
    assert probe.hits == 1


def test_context_manager_detaches_when_the_block_raises(program):
    with pytest.raises(KeyError), fprobe.attach("leaf", entry=lambda *hit: 0):
        raise KeyError
    assert not is_patched(program, "leaf")


@pytest.mark.parametrize("target", [5, None, ["leaf", 5], [b"leaf"]])
def test_another_target_is_refused(target):
    with pytest.raises(
        TypeError, match="is not a target of fprobes; give a pattern, a list of names, or a list of add"
    ):
        fprobe.attach(target, entry=lambda *hit: 0)


def test_an_empty_list_is_refused():
    with pytest.raises(
        ValueError, match="the list of targets is empty: give a pattern, a list of names, or a list of addr"
    ):
        fprobe.attach([], entry=lambda *hit: 0)


def test_an_action_of_kprobes_is_refused():
    with pytest.raises(TypeError, match=r"<Count: hits 0> is not an action of fprobes; give fprobe\.Count\(\)"):
        fprobe.attach("leaf", action=kprobes.Count())


def test_decorator_attaches_while_the_function_runs(program):
    probe = fprobe.attach("leaf", entry=lambda *hit: 0)

    @probe
    def run(n):
        """Docs."""
        assert is_patched(program, "leaf")
        return program["loop"](n)

    assert run(3) == 3 and run.__doc__ == "Docs." and not is_patched(program, "leaf")
    assert probe.hits == 3
    assert run(5) == 5 and probe.hits == 5


def test_a_decorator_with_max_hits_counts_anew_each_time(program):
    probe = fprobe.attach("leaf", entry=lambda *hit: 0, max_hits=2)
    run = probe(lambda: program["loop"](5))
    run()
    assert probe.hits == 2
    run()
    assert probe.hits == 2 and probe.counts.missed == 0


def test_max_hits_of_several_threads_is_exact(program):
    seen = []
    with fprobe.attach("leaf", entry=lambda *hit: seen.append(1), max_hits=57) as probe:
        threads = [threading.Thread(target=program["loop"], args=(100,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert fprobe.fprobe_disabled(probe.fp)
    assert len(seen) == probe.hits == 57


def test_max_hits_the_last_hit_has_its_exit_too(program):
    back = []
    with fprobe.attach("leaf", entry=lambda *hit: 0, exit=lambda *hit: back.append(1), max_hits=3) as probe:
        program["loop"](10)
    assert probe.hits == 3 and back == [1, 1, 1]


@pytest.mark.parametrize("limit", [1, 3])
def test_the_hit_that_uses_up_max_hits_disables_the_probe(program, limit):
    """Nobody has to come by once more to find that there is nothing left."""
    with fprobe.attach("leaf", entry=lambda *hit: 0, max_hits=limit) as probe:
        for _ in range(limit - 1):
            program["leaf"](1)
        assert not fprobe.fprobe_disabled(probe.fp)
        program["leaf"](1)
        assert fprobe.fprobe_disabled(probe.fp) and probe.hits == limit


def test_thread_filter(program):
    seen = []
    with fprobe.attach(
        "leaf", entry=lambda *hit: seen.append(threading.get_native_id()), thread=threading.get_native_id()
    ) as probe:
        other = threading.Thread(target=program["loop"], args=(10,))
        other.start()
        other.join()
        program["loop"](2)
    assert seen == [threading.get_native_id()] * 2 and probe.hits == 2 and probe.counts.missed == 0


def test_targets_of_every_kind(program):
    for target, expected in (
        ("[lo]*", {"leaf", "loop", "other"}),
        (["leaf", "twice"], {"leaf", "twice"}),
        ([site_of(program, "leaf")], {"leaf"}),
        (("leaf",), {"leaf"}),
    ):
        with fprobe.attach(target, entry=lambda *hit: 0) as probe:
            assert set(probe.targets) == expected
    with fprobe.attach("l*", entry=lambda *hit: 0, exclude="loop") as probe:
        assert probe.targets == ["leaf"]
    assert probe.targets == []


def test_handlers_and_an_action_together_are_refused():
    with pytest.raises(ValueError, match="not both"):
        fprobe.attach("leaf", entry=print, action=fprobe.Count())


def test_names_that_can_be_read_only_once(program):
    with fprobe.attach((name for name in ["leaf"]), action=fprobe.Count()) as probe:
        assert probe.targets == ["leaf"]


def test_names_given_stay_as_they_were(program):
    names = ["twice", "leaf"]
    with fprobe.attach(names, entry=lambda *hit: 0):
        pass
    assert names == ["twice", "leaf"]


def test_detach_and_attach_by_hand(program):
    probe = fprobe.attach("leaf", entry=lambda *hit: 0)
    probe.detach()
    probe.attach()
    with pytest.raises(OSError, match="already registered"):
        probe.attach()
    probe.detach()
    probe.detach()


def test_disabled_from_the_start(program):
    with fprobe.attach("leaf", entry=lambda *hit: 0, disabled=True) as probe:
        program["leaf"](1)
        probe.enable()
        program["leaf"](1)
        probe.disable()
        program["leaf"](1)
    assert probe.hits == 1


def test_record_keeps_the_calls_with_times_and_callers(program):
    record = fprobe.Record(capacity=1 << 10)
    with fprobe.attach(["leaf", "twice"], action=record):
        program["twice"](1)
    calls = list(record.records())
    leaf, twice = site_of(program, "leaf"), site_of(program, "twice")
    assert [call.ip for call in calls] == [leaf, leaf, twice]
    outer = calls[-1]
    symbol = program.symbol("twice")
    for call in calls[:2]:
        assert outer.entered < call.entered <= call.left < outer.left
        assert symbol.address < call.caller < symbol.address + symbol.size
    assert {call.thread for call in calls} == {threading.get_native_id()}
    assert record.written == 3 and record.lost == 0


def test_record_the_oldest_gives_way(program):
    record = fprobe.Record(capacity=128)
    with fprobe.attach("leaf", action=record):
        program["loop"](1000)
    calls = list(record.records())
    assert record.written == 1000 and record.lost == 1000 - len(calls)
    assert 100 < len(calls) <= 256 and calls == sorted(calls)


@pytest.mark.parametrize("capacity", [0, -1, 3, 1000])
def test_record_capacity_is_a_power_of_two(capacity):
    with pytest.raises(ValueError, match=str(capacity)):
        fprobe.Record(capacity)


def test_stat_times_each_function(program):
    with fprobe.attach(["leaf", "twice", "factorial"], action=fprobe.Stat(), nr_maxactive=100) as probe:
        for _ in range(10):
            program["twice"](1)
        program["factorial"](7)
    stats = {name: probe.action.functions()[site_of(program, name)] for name in ("leaf", "twice", "factorial")}
    assert {name: stat.hits for name, stat in stats.items()} == {"leaf": 20, "twice": 10, "factorial": 7}
    assert all(stat.missed == 0 and stat.total_ns > 0 for stat in stats.values())
    assert stats["twice"].total_ns > stats["leaf"].total_ns


def test_an_action_used_again_starts_anew(program):
    stat = fprobe.Stat()
    for calls in (5, 3):
        with fprobe.attach("leaf", action=stat):
            program["loop"](calls)
        assert [found.hits for found in stat.functions().values()] == [calls]
