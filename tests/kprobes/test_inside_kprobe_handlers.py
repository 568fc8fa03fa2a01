"""Handlers that use the API or block: what docs/kprobes.md says of them."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

import threading
import time

import pytest
from isolation import isolated
from programs import basic

import kprobes
from kprobes import optimization

PLACES = {"breakpoint": ("none", False), "jump": ("none", True), "ftrace": ("fentry", False)}
KINDS = [
    (place, where)
    for place in PLACES
    for where in ("pre_handler", "post_handler")
    if (place, where) != ("jump", "post_handler")
]


def load(place):
    flavour, jumps = PLACES[place]
    optimization.set_kprobes_optimization(int(jumps))
    return basic(flavour=flavour)


class Place:
    """The entry of leaf, and probes that come to it with a handler of one kind; `order`: what their handlers have noted."""

    def __init__(self, place, where):
        self.module, self.where, self.order, self.probes = load(place), where, [], []

    def add(self, name, action=None):
        def handler(p, regs, flags=0):
            self.order.append(name)
            if action:
                action(p)

        p = kprobes.kprobe(symbol_name=f"{self.module.name}:leaf", **{self.where: handler})
        kprobes.register_kprobe(p)
        self.probes.append(p)
        return p

    def settled(self):
        kprobes.wait_for_kprobe_optimizer()
        return self

    def call(self):
        """Two calls of leaf."""
        assert self.module["twice"](1) == 3
        return self.order

    def __enter__(self):
        return self

    def __exit__(self, *error):
        assert not [p.errors.first for p in self.probes if p.errors.first]
        kprobes.unregister_kprobes([p for p in self.probes if p.registered])
        assert self.module["twice"](1) == 3


@isolated(shared=True)
@pytest.mark.parametrize(("place", "where"), KINDS)
def test_what_handlers_do_to_probes_of_their_own_place(place, where):
    with Place(place, where) as itself:
        itself.add("once", kprobes.unregister_kprobe)
        assert itself.settled().call() == ["once"]
    with Place(place, where) as older:
        first = older.add("older")
        older.add("newer", lambda p: kprobes.unregister_kprobe(first))
        assert older.settled().call() == ["newer", "newer"], "what has been unregistered is passed over at once"
    with Place(place, where) as later:
        later.add("first", lambda p: len(later.probes) > 1 or later.add("second"))
        assert later.settled().call() == ["first", "second", "first"], "it sees the next hit"
    with Place(place, where) as off:
        off.add("off", kprobes.disable_kprobe)
        assert off.settled().call() == ["off"] and off.probes[0].is_off


@isolated(shared=True)
@pytest.mark.parametrize(("place", "where"), KINDS)
def test_a_handler_that_blocks_holds_up_its_thread_and_who_unregisters_its_probe(place, where):
    inside, go_on, main = threading.Event(), threading.Event(), threading.get_ident()

    def block(p):
        if threading.get_ident() != main:
            inside.set()
            assert go_on.wait(20)

    with Place(place, where) as held:
        p = held.add("hit", block)
        held.settled()
        thread = threading.Thread(target=held.module["leaf"], args=(1,))
        thread.start()
        assert inside.wait(20)
        assert held.call() == ["hit"] * 3
        with kprobes.attach("other", pre=lambda p, regs: 0):
            assert held.module["other"](1) == 3
            unregistering = threading.Thread(target=kprobes.unregister_kprobe, args=(p,))
            unregistering.start()
            time.sleep(0.05)
            assert unregistering.is_alive()
            go_on.set()
        thread.join(20)
        unregistering.join(20)
        assert not unregistering.is_alive() and not p.registered


@isolated(shared=True)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("where", ["entry_handler", "handler"])
def test_a_return_probe_that_unregisters_itself(place, where):
    """Its handlers are not called again: at entry not even the other one of that call."""
    module, seen = load(place), []
    handlers = {name: lambda ri, regs, name=name: seen.append(name) for name in ("entry_handler", "handler")}
    handlers[where] = lambda ri, regs: seen.append(where) or kprobes.unregister_kretprobe(rp)
    rp = kprobes.kretprobe(symbol_name="leaf", **handlers)
    kprobes.register_kretprobe(rp)
    kprobes.wait_for_kprobe_optimizer()
    assert module["twice"](1) == 3
    assert seen == (["entry_handler"] if where == "entry_handler" else ["entry_handler", "handler"])
    assert not rp.registered and rp.errors.first is None and rp.nmissed == 0
