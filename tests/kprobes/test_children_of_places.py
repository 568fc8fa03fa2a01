"""The probes of one place: what hits read, and that a change of one probe does not walk over the others."""

import random

import pytest

from kprobes.children import Children
from kprobes.hit.records import PRE_PLAIN, Child, ChildList


class Probe:
    """What `Children` reads of a kprobe, with a count of how often its flags were asked for."""

    codes = ()
    flags = 0
    fast = None

    def __init__(self, address: int, foreign: bool, post: bool, has_fault: int, plain: bool) -> None:
        self.native = Child.ctypes(post=1 if post else None, kind=PRE_PLAIN if plain else 0)
        self.native_address = address
        self.foreign, self.has_fault = foreign, has_fault
        self.off = False
        self.asked = 0

    @property
    def is_off(self) -> bool:
        self.asked += 1
        return self.off


def random_probe(choose: random.Random) -> Probe:
    answers = [choose.random() < 0.3 for _ in range(3)]
    return Probe(choose.getrandbits(47), answers[0], answers[1], choose.choice((0, 0, 1, 2)), answers[2])


def check(children: Children, expected: list[Probe]) -> None:
    memory = children.native_list()
    read = ChildList.ctypes.from_buffer_copy(memory.raw.ljust(ChildList.size, b"\0"))
    natives = [probe.native for probe in expected]
    assert list(children) == expected
    assert children.enabled == {probe for probe in expected if not probe.off}
    assert children.only is (expected[0] if len(expected) == 1 else None)
    assert read.count == len(expected)
    addresses = memory.raw[ChildList.offset("children") :][: 8 * len(expected)]
    assert addresses == b"".join(probe.native_address.to_bytes(8, "little") for probe in expected)
    assert read.foreign == any(probe.foreign for probe in expected)
    assert read.has_post == children.has_post == any(native.post is not None for native in natives)
    assert read.plain == (len(expected) == 1 and bool(natives[0].kind & PRE_PLAIN))
    assert read.has_fault == max((probe.has_fault for probe in expected), default=0)


@pytest.mark.parametrize("seed", range(10))
def test_hits_read_the_probes_that_are_there(seed: int) -> None:
    choose = random.Random(seed)
    children, expected = Children(), []
    for _ in range(150):
        step = choose.random()
        if step < 0.45 or not expected:
            expected.insert(0, random_probe(choose))
            expected[0].off = choose.random() < 0.5
            children.join(expected[0])
        elif step < 0.8:
            children.leave(expected.pop(choose.randrange(len(expected))))
        else:
            changed = choose.choice(expected)
            changed.off = not changed.off
            children.note(changed)
        check(children, expected)


def test_a_change_of_one_probe_asks_none_of_the_others() -> None:
    choose = random.Random(1)
    probes = [random_probe(choose) for _ in range(1000)]
    children = Children()
    for probe in probes:
        children.join(probe)
        children.native_list()
    assert {probe.asked for probe in probes} == {1}
    for probe in probes:
        children.note(probe)
    assert {probe.asked for probe in probes} == {2}
    for probe in probes:
        children.leave(probe)
    assert {probe.asked for probe in probes} == {2}
