"""Tables of function_graph's rules that are replaced while others stay in use."""

from __future__ import annotations

import gc

from isolation import isolated


@isolated
def test_replacing_one_set_leaves_the_others_where_they_are():
    """The table of the other set went with those that were replaced, and hits looked into freed memory for ever."""
    from ftrace.hit.address_table import AddressTable
    from ftrace.runtime import runtime
    from ftrace.tracers.graph_rules import AddressSets

    def tables():
        gc.collect()
        return [each for each in gc.get_objects() if isinstance(each, AddressTable)]

    runtime()  # has tables of its own
    before = len(tables())
    sets = AddressSets()
    assert sets.replace("kept", {1, 2})
    for _ in range(5):
        assert sets.replace("other", {3})
        sets.forget_replaced()
        assert len(tables()) == before + 2
    assert sets.replace("other", set()) == 0
    sets.forget_replaced()
    assert len(tables()) == before + 1
    assert sets.replace("other", {0}), "a set with nothing in it that is looked up is still one"
