"""Whatever is given to the kernel's calls, they work or raise, and leave nothing behind."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

from random import Random

import pytest
from isolation import isolated
from programs import assert_untouched, basic
from sampled import in_stress

REFUSALS = (OSError, TypeError, ValueError, OverflowError)
NUMBERS = [0, 1, 2, -1, 7, 64, 65, 4096, 1 << 18, 1 << 31, -(1 << 31), 1 << 32, 1 << 63, 1 << 64, -(1 << 64)]
ODD = [*NUMBERS, None, 1.5, "x", b"x", True, [], (1,)]
PATTERNS = [
    "leaf",
    "l*",
    "",
    "*",
    "!leaf",
    "!*",
    "1",
    "0",
    "0x",
    "[",
    "\\",
    "l[",
    "**",
    "l?af",
    "\0",
    "é",
    None,
    5,
    b"leaf",
    "x" * 5000,
]
HANDLERS = [None, lambda *hit: 0, lambda *hit: 1, 5, "x", int]


def works(call, *arguments):
    try:
        call(*arguments)
    except REFUSALS:
        return False
    return True


@isolated(timeout=60)
@pytest.mark.parametrize(("seed", "times"), [(1, 150), in_stress((1, 600)), in_stress((2, 600))])
def test_fprobes(seed, times):
    import fprobe

    module, random = basic(), Random(seed)
    leaf = module.symbol("leaf").address
    addresses = [leaf, leaf + 4, leaf + 6, 0, -1, 1 << 63, 1 << 64, 5, None, "leaf", 1.5]
    registered = 0
    for _ in range(times):
        fields = {
            name: random.choice(ODD) for name in ("flags", "entry_data_size", "nr_maxactive", "thread", "max_hits")
        }
        plain = {name: value for name, value in fields.items() if random.random() < 0.1}
        fp = fprobe.fprobe(random.choice(HANDLERS), random.choice(HANDLERS), **plain)
        ways = [
            (fprobe.register_fprobe, random.choice(PATTERNS), random.choice([None, random.choice(PATTERNS)])),
            (
                fprobe.register_fprobe_ips,
                random.choices(addresses, k=random.randrange(3)),
                random.choice([None, 1, 0, -1]),
            ),
            (fprobe.register_fprobe_syms, random.choices(["leaf", "other", "x", 5], k=random.randrange(3))),
        ]
        register, *arguments = random.choice(ways)
        if works(register, fp, *arguments):
            registered += 1
            assert fp.registered and module["twice"](1) == 3
            fprobe.unregister_fprobe(fp)
        assert not fp.registered
    assert_untouched()
    assert registered > times // 60


@isolated(timeout=60)
@pytest.mark.parametrize("seed", [1, in_stress(2)])
def test_kprobes(seed):
    import kprobes

    module, random = basic(), Random(seed)
    leaf = module.symbol("leaf").address
    addresses = [None, None, None, None, leaf, leaf + 5, leaf + 5, leaf + 7, 0, -1, 1 << 63, 1 << 64, 5, "leaf", 1.5]
    handlers = [handler for handler in HANDLERS if not callable(handler) or handler in (HANDLERS[1], int)]  # ip stays
    registered = 0
    for _ in range(200):
        where = {
            "symbol_name": random.choice(["leaf", "other", None, None, 5, "", "no"]),
            "addr": random.choice(addresses),
        }
        where["offset"] = random.choice([0, 5, random.choice(ODD)])
        given = {name: random.choice(handlers) for name in ("pre_handler", "post_handler", "fault_handler")}
        p = kprobes.kprobe(**where, **given, flags=random.choice([0, 1, 2, 255]))
        pair = {name: random.choice(handlers) for name in ("entry_handler", "handler")}
        rp = kprobes.kretprobe(
            symbol_name=random.choice(["leaf", "other", None]),
            maxactive=random.choice([0, random.choice(ODD)]),
            data_size=random.choice([0, random.choice(ODD)]),
            **pair,
        )
        for probe, register, unregister in (
            (p, kprobes.register_kprobe, kprobes.unregister_kprobe),
            (rp, kprobes.register_kretprobe, kprobes.unregister_kretprobe),
        ):
            if works(register, probe):
                registered += 1
                assert probe.registered and module["twice"](1) == 3
                unregister(probe)
            assert not probe.registered
    kprobes.wait_for_kprobe_optimizer()
    assert kprobes.kprobes_list() == ""
    assert_untouched()
    assert registered > 10
