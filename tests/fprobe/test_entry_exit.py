"""What handlers are given, and what a hit does in which order: FP-3..9, FP-29..40."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import ctypes
import threading
import time

import pytest
from programs import site_of

import fprobe


def test_fp4_entry_ip_is_the_location_at_entry_and_exit(program):
    seen = []
    note = lambda fp, ip, ret, regs, data: seen.append(ip)  # noqa: E731
    with fprobe.attach("leaf", entry=note, exit=note):
        program["leaf"](1)
    assert seen == [site_of(program, "leaf")] * 2


def test_fp5_ret_ip_is_the_real_return_address_in_both(program):
    twice = program.symbol("twice")
    seen = []
    note = lambda fp, ip, ret, regs, data: seen.append(ret)  # noqa: E731
    with fprobe.attach(["leaf", "twice"], entry=note, exit=note):
        program["twice"](1)
    outer, first, first_back, second, second_back, outer_back = seen
    assert first == first_back and second == second_back and outer == outer_back
    assert twice.address < first < second < twice.address + twice.size
    assert not twice.address <= outer < twice.address + twice.size


def test_fp5_all_probes_of_a_dispatch_see_the_same_ret_ip(program):
    seen = []

    def first(fp, ip, ret, regs, data):
        seen.append(ret)

    with fprobe.attach("leaf", entry=first, exit=first), fprobe.attach("leaf", entry=first, exit=first):
        program["leaf"](1)
    assert len(seen) == 4 and len(set(seen)) == 1


def test_fp6_registers_at_entry(program):
    seen = {}

    def entry(fp, ip, ret, regs, data):
        seen.update(ip=regs.ip - ip, slot=ctypes.c_uint64.from_address(regs.sp).value - ret, orig=regs.orig_ax)
        seen["arguments"] = [regs.di, regs.si, regs.dx, regs.cx, regs.r8, regs.r9]
        seen["stack"] = [ctypes.c_uint64.from_address(regs.sp + 8 + 8 * i).value for i in range(3)]

    with fprobe.attach("nine", entry=entry, exit=lambda *hit: None):
        program["nine"](*range(1, 10))
    assert seen == {"ip": 5, "slot": 0, "orig": 0, "arguments": [1, 2, 3, 4, 5, 6], "stack": [7, 8, 9]}


def test_fp6_registers_at_exit(program):
    seen = {}

    def entry(fp, ip, ret, regs, data):
        seen["frame"] = regs.sp

    def exit_(fp, ip, ret, regs, data):
        seen.update(ax=regs.ax, ip=regs.ip - ret, above=regs.sp - seen["frame"])

    with fprobe.attach("leaf", entry=entry, exit=exit_):
        program["leaf"](41)
    assert (seen["ax"], seen["ip"], seen["above"]) == (42, 0, 8)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 64, 65, 256, 4096])
def test_fp7_entry_data_is_zeroed_and_shared_by_entry_and_exit(program, size):
    seen = []

    def entry(fp, ip, ret, regs, data):
        assert len(data) == size and bytes(data) == bytes(size)
        data[:] = bytes((regs.di + i) & 0xFF for i in range(size))

    def exit_(fp, ip, ret, regs, data):
        seen.append(bytes(data) == bytes((regs.ax - 1 + i) & 0xFF for i in range(size)))

    with fprobe.attach("leaf", entry=entry, exit=exit_, entry_data_size=size) as probe:
        program["loop"](20)
    assert probe.fp.errors.first is None
    assert seen == [True] * 20


def test_fp7_nested_calls_have_data_of_their_own(program):
    def entry(fp, ip, ret, regs, data):
        data[:8] = regs.di.to_bytes(8, "little")

    back = []
    exit_ = lambda fp, ip, ret, regs, data: back.append(int.from_bytes(data[:8], "little"))  # noqa: E731
    with fprobe.attach("factorial", entry=entry, exit=exit_, entry_data_size=100, nr_maxactive=100):
        program["factorial"](10)
    assert back == list(range(1, 11))


def test_fp7_two_probes_have_data_of_their_own(program):
    seen = []

    def pair(mark, size):
        def entry(fp, ip, ret, regs, data):
            data[:] = bytes([mark]) * size

        def exit_(fp, ip, ret, regs, data):
            seen.append((mark, bytes(data) == bytes([mark]) * size))

        return fprobe.attach("leaf", entry=entry, exit=exit_, entry_data_size=size)

    with pair(1, 3), pair(2, 61), pair(3, 500), pair(4, 8):
        program["leaf"](1)
    assert seen == [(1, True), (2, True), (3, True), (4, True)]


def test_fp7_no_data_without_exit_handler_or_without_size(program):
    seen = []
    note = lambda fp, ip, ret, regs, data: seen.append(data)  # noqa: E731
    with fprobe.attach("leaf", entry=note, entry_data_size=16):
        program["leaf"](1)
    with fprobe.attach("leaf", entry=note, exit=note):
        program["leaf"](1)
    assert seen == [None, None, None]


def test_fp8_both_handlers_may_be_missing(program):
    with fprobe.attach("leaf") as probe:
        assert program["leaf"](1) == 2
    assert probe.counts.missed == 0


def test_fp8_exit_only(program):
    seen = []
    with fprobe.attach("leaf", exit=lambda fp, ip, ret, regs, data: seen.append(regs.ax)):
        program["twice"](5)
    assert seen == [6, 7]


def test_fp9_entry_changes_arguments_and_exit_the_result(program):
    def entry(fp, ip, ret, regs, data):
        regs.di = 100

    def exit_(fp, ip, ret, regs, data):
        regs.ax += 1000

    with fprobe.attach("leaf", entry=entry, exit=exit_):
        assert program["leaf"](1) == 1101
    assert program["leaf"](1) == 2


@pytest.mark.parametrize("with_exit", [False, True])
def test_fp9_entry_redirects_by_ip(program, with_exit):
    target = program.symbol("other").address
    back = []

    def entry(fp, ip, ret, regs, data):
        regs.ip = target

    exit_ = (lambda fp, ip, ret, regs, data: back.append(regs.ax)) if with_exit else None
    with fprobe.attach("leaf", entry=entry, exit=exit_):
        assert program["twice"](10) == 14
    assert back == ([12, 14] if with_exit else [])


def test_fp9_redirection_to_a_probed_function(program):
    target = program.symbol("other").address
    seen = []

    def entry(fp, ip, ret, regs, data):
        regs.ip = target

    note = lambda fp, ip, ret, regs, data: seen.append((ip, regs.ax))  # noqa: E731
    with fprobe.attach("leaf", entry=entry, exit=note), fprobe.attach("other", exit=note):
        assert program["leaf"](10) == 12
    assert seen == [(site_of(program, "other"), 12), (site_of(program, "leaf"), 12)]


def test_fp9_ip_and_sp_at_exit_are_ignored(program):
    def exit_(fp, ip, ret, regs, data):
        regs.ip, regs.sp = 0x1234, 0x5678

    with fprobe.attach("leaf", exit=exit_):
        assert program["twice"](1) == 3


def test_rh13_later_exit_handlers_see_a_changed_result(program):
    seen = []

    def first(fp, ip, ret, regs, data):
        regs.ax = 77

    with (
        fprobe.attach("leaf", exit=first),  # registered first: its exit handler runs first
        fprobe.attach("leaf", exit=lambda fp, ip, ret, regs, data: seen.append(regs.ax)),
    ):
        assert program["leaf"](1) == 77
    assert seen == [77]


def test_fp29_fp34_a_cancelled_call_has_no_exit_and_is_no_miss(program):
    back = []
    with fprobe.attach(
        "factorial",
        entry=lambda fp, ip, ret, regs, data: regs.di % 2,
        exit=lambda fp, ip, ret, regs, data: back.append(regs.ax),
        nr_maxactive=4,
    ) as probe:
        for _ in range(10):  # its nodes come back at once, or the pool would run dry
            assert program["factorial"](6) == 720
    assert back == [2, 24, 720] * 10
    assert probe.counts.hits == 60 and probe.counts.missed == 0


def test_fp29_one_of_two_probes_cancels(program):
    order = []
    with (
        fprobe.attach("leaf", entry=lambda *hit: 0, exit=lambda *hit: order.append("a")),
        fprobe.attach("leaf", entry=lambda *hit: 1, exit=lambda *hit: order.append("b")),
        fprobe.attach("leaf", entry=lambda *hit: 0, exit=lambda *hit: order.append("c")),
    ):
        program["leaf"](1)
    assert order == ["a", "c"]


@pytest.mark.parametrize(
    ("result", "cancels", "raises"),
    [
        (0, False, None),
        (None, False, None),
        (False, False, None),
        (1, True, None),
        (-1, True, None),
        (True, True, None),
        (1 << 32, True, None),  # not cut off to 0
        (1 << 64, False, OverflowError),
        ("1", False, TypeError),
        (1.0, False, TypeError),
    ],
)
def test_fp29_what_an_entry_handlers_result_means(program, result, cancels, raises):
    """What is neither None nor a C long counts as an exception, and so as 0."""
    back = []
    with fprobe.attach("leaf", entry=lambda *hit: result, exit=lambda *hit: back.append(1)) as probe:
        assert program["leaf"](1) == 2
    assert back == ([] if cancels else [1])
    assert type(probe.fp.errors.first) is (raises or type(None))


@pytest.mark.parametrize("others", [0, 1])
def test_fp29_a_shortage_skips_only_the_exit_handler(program, others):
    entered, back = [], []

    def entry(fp, ip, ret, regs, data):
        entered.append((regs.di, data is None))
        return 1 if data is None else 0  # ignored where there is no node

    exit_ = lambda fp, ip, ret, regs, data: back.append(regs.ax)  # noqa: E731
    unlimited = [fprobe.attach("factorial", entry=lambda *hit: 0) for _ in range(others)]
    for other in unlimited:
        other.attach()
    with fprobe.attach("factorial", entry=entry, exit=exit_, entry_data_size=8, nr_maxactive=2) as probe:
        assert program["factorial"](5) == 120
        assert program["factorial"](5) == 120
    for other in unlimited:
        other.detach()
    assert entered == [(5, False), (4, False), (3, True), (2, True), (1, True)] * 2
    assert back == [24, 120] * 2
    assert probe.counts.missed_nodes == probe.fp.nmissed == 6


def test_fp33_the_result_is_ignored_without_exit_handler(program):
    with fprobe.attach("leaf", entry=lambda *hit: 1) as probe:
        assert program["leaf"](1) == 2
    assert probe.hits == 1


class Held:
    """A probe on apply (exit noted), and a call of it whose body waits."""

    def __init__(self, program):
        self.entered, self.go_on, self.back = threading.Event(), threading.Event(), []
        self.probe = fprobe.attach("apply", entry=lambda *hit: 0, exit=lambda *hit: self.back.append(1))
        callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
        self._body = callback(self._wait)
        self._call = lambda: program["apply"](ctypes.cast(self._body, ctypes.c_void_p).value, 5)

    def _wait(self, x):
        self.entered.set()
        assert self.go_on.wait(30)
        return x

    def while_running(self, action) -> None:
        """Do something while the call is in its body."""
        results = []
        thread = threading.Thread(target=lambda: results.append(self._call()))
        thread.start()
        assert self.entered.wait(30)
        action()
        self.go_on.set()
        thread.join(30)
        assert results == [5]

    def __enter__(self):
        self.probe.attach()
        return self

    def __exit__(self, *error):
        self.probe.detach()


def test_fp39_disabled_at_exit(program):
    with Held(program) as held:
        held.while_running(held.probe.disable)
        assert held.back == [] and held.probe.fp.nmissed == 0


def test_fp39_disabled_and_enabled_again_in_between(program):
    with Held(program) as held:
        held.while_running(lambda: (held.probe.disable(), held.probe.enable()))
        assert held.back == [1]


def test_fp39_disabled_at_entry_and_enabled_at_exit(program):
    with Held(program) as held:
        held.probe.disable()
        held.while_running(held.probe.enable)
        assert held.back == []


def test_fp40_fp44_fp47_unregistered_while_the_call_is_running(program):
    """The call does not hold up unregistering, and returns without its handler."""
    with Held(program) as held:
        held.while_running(held.probe.detach)
        assert held.back == [] and held.probe.counts.missed == 0


def test_fp53_registered_again_while_an_old_call_is_running(program):
    with Held(program) as held:
        held.while_running(lambda: (held.probe.detach(), held.probe.attach()))
        assert held.back == []  # that call belongs to the registration before
        held.entered.clear()
        held.while_running(lambda: None)
        assert held.back == [1]


def test_fp28_a_node_of_an_old_registration_is_not_given_to_the_new_pool(program):
    with Held(program) as held:
        held.probe.fp.nr_maxactive = 1

        def again():
            held.probe.detach()
            held.probe.attach()

        held.while_running(again)
        held.probe.counts  # noqa: B018
        held.probe.detach()
        held.probe.target, held.probe.fp.nr_maxactive = "factorial", 1
        held.probe.attach()
        program["factorial"](3)
        assert held.probe.counts.missed_nodes == 2


def test_fp44_unregister_waits_for_a_running_handler(program):
    entered, left = threading.Event(), []

    def entry(*hit):
        entered.set()
        time.sleep(0.05)
        left.append(1)

    probe = fprobe.attach("leaf", entry=entry).attach()
    thread = threading.Thread(target=lambda: program["leaf"](1))
    thread.start()
    assert entered.wait(30)
    probe.detach()
    assert left == [1]
    thread.join(30)


def test_fp44_unregister_waits_for_a_running_exit_handler(program):
    entered, left = threading.Event(), []

    def exit_(*hit):
        entered.set()
        time.sleep(0.05)
        left.append(1)

    probe = fprobe.attach("leaf", exit=exit_).attach()
    thread = threading.Thread(target=lambda: program["leaf"](1))
    thread.start()
    assert entered.wait(30)
    probe.detach()
    assert left == [1]
    thread.join(30)


def test_fp44_unregister_waits_for_a_handler_that_calls_probed_functions(program):
    """Nested hits of the same thread are no sign that the handler has ended."""
    entered, left = threading.Event(), []

    def entry(*hit):
        entered.set()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            program["other"](1)
        left.append(1)

    with fprobe.attach("other", entry=lambda *hit: 0):
        probe = fprobe.attach("leaf", entry=entry).attach()
        thread = threading.Thread(target=lambda: program["leaf"](1))
        thread.start()
        assert entered.wait(30)
        probe.detach()
        assert left == [1]
        thread.join(30)
