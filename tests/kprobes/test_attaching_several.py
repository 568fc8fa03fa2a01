"""kprobes.attach and attach_return on several places at once, what they count, and what Python handlers raise."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

import errno
import threading
import zlib

import pytest
from programs import basic

import kprobes


@pytest.fixture(scope="module")
def program():
    module = basic()
    yield module
    module.unload()


@kprobes.native
def native_pre(p, regs):
    pass


def test_a_list_has_a_probe_at_each_place(program):
    seen = []
    with kprobes.attach(["leaf", program["other"].address], pre=lambda p, regs: seen.append(p.addr)) as probe:
        program["twice"](1)
        program["other"](1)
        assert [p.addr for p in probe.probes] == [program["leaf"].address, program["other"].address]
    assert probe.hits == len(seen) == 3
    program["leaf"](1)
    assert len(seen) == 3


def test_a_glob_is_looked_up_when_it_is_attached(program):
    probe = kprobes.attach("t_only_for_this*", action=kprobes.Count())
    with pytest.raises(LookupError, match=r"no function of .* matches 't_only_for_this\*'"):
        probe.attach()
    with kprobes.attach(f"{program.name}:l[e-o]*", action=kprobes.Count()) as probe:
        program["loop"](10)
    assert {p.symbol_name for p in probe.probes} == {f"{program.name}:leaf", f"{program.name}:loop"}
    assert probe.hits == 11


@pytest.mark.parametrize("attach", [
    lambda target: kprobes.attach(target, action=kprobes.Count()),
    lambda target: kprobes.attach_return(target, action=kprobes.Count()),
])  # fmt: skip
def test_a_glob_that_is_attached_again_keeps_its_probes(program, attach):
    """They were taken for functions that cannot be probed, and the third attempt forgot them: they stayed for good."""
    before = kprobes.kprobes_list()
    with attach(f"{program.name}:l[e-o]*") as probe:
        for _ in range(3):
            with pytest.raises(OSError, match="already registered") as refused:
                probe.attach()
            assert refused.value.errno == errno.EINVAL and probe.skipped == []
        program["loop"](10)
        assert probe.hits == 11
    assert kprobes.kprobes_list() == before


def test_a_glob_of_a_library():
    with kprobes.attach("libz:crc3*", action=kprobes.Count()) as probe:
        zlib.crc32(b"abc" * 99)
    assert probe.hits >= 1
    assert all(p.symbol_name.startswith("libz.so") for p in probe.probes)


def test_a_failure_at_one_place_leaves_no_probe_at_the_others(program):
    with pytest.raises(OSError, match="no_such") as caught:
        kprobes.attach(["leaf", "no_such"], action=kprobes.Count()).attach()
    assert caught.value.errno == errno.ENOENT
    assert not kprobes.kprobes_list()


def test_a_list_that_is_empty_and_what_is_no_target():
    with pytest.raises(ValueError, match="list of targets is empty"):
        kprobes.attach([])
    with pytest.raises(TypeError, match=r"1\.5 is not a target"):
        kprobes.attach([1.5])


def test_what_a_glob_matches_and_cannot_be_probed_is_skipped():
    def pre(p, regs):
        return 0

    probe = kprobes.attach("libc:getpid*", pre=pre)
    with pytest.raises(OSError, match="none of 1 functions that 'libc:getpid\\*' matches can be probed"):
        probe.attach()
    with kprobes.attach("libc:getpid*", pre=pre, python_unsafe=True):
        pass


def test_returns_of_a_list_and_a_glob(program):
    values = []

    def returned(ri, regs):
        values.append(kprobes.regs_return_value(regs))

    with kprobes.attach_return(["leaf", f"{program.name}:oth*"], returned) as probe:
        program["twice"](1)
        program["other"](5)
    assert values == [2, 3, 7]
    assert probe.hits == 3 and len(probe.probes) == 2


def test_hits_of_python_handlers_are_exact_with_several_threads(program):
    with kprobes.attach("leaf", pre=lambda p, regs: 0) as probe:
        threads = [threading.Thread(target=program["loop"], args=(100,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert probe.hits == probe.hits == 400
    assert probe.hits == 400
    with probe:
        program["loop"](3)
    assert probe.hits == 3


def test_hits_of_an_action_on_returns(program):
    with kprobes.attach_return("leaf", action=kprobes.Count()) as probe:
        program["loop"](7)
    assert probe.hits == 7


def test_hits_of_native_handlers_are_refused(program):
    with kprobes.attach("leaf", pre=native_pre) as probe, pytest.raises(ValueError, match="action=Count"):
        _ = probe.hits


def test_errors_of_all_places(program):
    def pre(p, regs):
        raise ValueError(p.symbol_name)

    with kprobes.attach(["leaf", "other"], pre=pre) as probe:
        program["other"](1)
        program["leaf"](1)
    assert probe.errors.count == 2
    assert str(probe.errors.first) == "leaf"
    with kprobes.attach_return("leaf", lambda ri, regs: 1 / 0) as probe:
        program["leaf"](1)
    assert isinstance(probe.errors.first, ZeroDivisionError)


def test_handlers_and_an_action_together_are_refused():
    with pytest.raises(ValueError, match="not both"):
        kprobes.attach("leaf", pre=native_pre, action=kprobes.Count())
    with pytest.raises(TypeError, match=r"give kprobes\.Count"):
        kprobes.attach("leaf", action=3)
