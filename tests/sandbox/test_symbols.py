"""The symbol table of the process."""

from __future__ import annotations

import gc
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.symbols.table import Symbol, SymbolTable, locate


@pytest.fixture
def table():
    table = SymbolTable()
    table.add(
        "one", [Symbol("f", 0x1000, 0x20, "one"), Symbol("g", 0x1020, 0x10, "one"), Symbol("d", 0x5000, 8, "one")]
    )
    table.add(
        "two", [Symbol("f", 0x3000, 0x10, "two"), Symbol("alias", 0x3000, 0x10, "two"), Symbol("l", 0x3004, 0, "two")]
    )
    return table


def test_a_name_may_have_several_addresses(table):
    assert [symbol.address for symbol in table.named("f")] == [0x1000, 0x3000]
    assert table.lookup("f") == 0x1000
    assert table.lookup("two:f") == 0x3000
    assert table.named("three:f") == []


def test_an_address_has_a_name_an_offset_a_size_and_a_module(table):
    assert table.describe(0x1004) == "f+0x4/0x20 [one]"
    assert table.describe(0x5007) == "d+0x7/0x8 [one]"
    assert str(table.locate(0x1020).symbol) == "g [one]"


@pytest.mark.parametrize("address", [0, 0xFFF, 0x1030, 0x2FFF, 0x3010, 0x5008, 2**64])
def test_an_address_between_symbols_has_none(table, address):
    assert table.locate(address) is None
    assert table.describe(address) == f"{address:#x}"


def test_a_label_without_a_size_covers_itself_only(table):
    assert table.locate(0x3005).symbol.name in ("f", "alias")
    labels = [Symbol("l", 0x10, 0, "m"), Symbol("f", 0x20, 4, "m")]
    assert locate(labels, 0x10).symbol.name == "l"
    assert locate(labels, 0x11) is None


def test_modules_come_and_go_as_a_whole(table):
    table.remove("one")
    assert table.lookup("f") == 0x3000 and table.locate(0x1004) is None and len(table) == 3
    table.add("one", [Symbol("h", 0x1000, 0x20, "one")])
    assert table.describe(0x1004) == "h+0x4/0x20 [one]"
    with pytest.raises(ValueError, match="module 'one' are already registered"):
        table.add("one", [])
    with pytest.raises(LookupError, match="module 'three'"):
        table.remove("three")


def test_a_name_that_is_not_there_is_named(table):
    with pytest.raises(LookupError, match="no symbol 'nosuch'"):
        table.lookup("nosuch")


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 20)), max_size=30), st.integers(0, 230))
def test_locating_is_what_looking_at_every_symbol_gives(stretches, address):
    ordered: list[Symbol] = []
    for start, size in sorted(stretches):
        if not ordered or start >= ordered[-1].end:
            ordered.append(Symbol(f"s{start}", start, size, "m"))
    expected = next((symbol for symbol in ordered if symbol.address <= address < symbol.end), None)
    found = locate(ordered, address)
    assert (found.symbol if found else None) == expected


_BLOCKS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=8)


@given(st.lists(_BLOCKS, max_size=4), st.integers(0, 35), st.integers(-1, 1))
def test_several_modules_are_searched_as_one(modules, block, beside):
    """In blocks of 1,000 bytes, so that some of a module's symbols are a page apart, and modules lie within each other."""
    table, every = SymbolTable(), []
    for number, blocks in enumerate(modules):
        symbols = [Symbol(f"s{start}", start * 1000, size * 1000, f"m{number}") for start, size in blocks]
        table.add(f"m{number}", symbols)
        every += symbols
    address = block * 1000 + beside
    covering = [symbol for symbol in every if symbol.address <= address < symbol.end]
    labels = [symbol for symbol in every if symbol.address == address]
    found = table.locate(address)
    if covering:
        assert found.symbol.address == max(symbol.address for symbol in covering) and found.symbol.size
    else:
        assert (found is not None) == bool(labels)
    assert sorted(table) == sorted(every) and [s.address for s in table] == sorted(s.address for s in every)
    assert [s.address for s in table.named("s3")] == [3000 for s in every if s.name == "s3"]
    for number in range(len(modules)):
        table.remove(f"m{number}")
    assert not len(table) and table.locate(address) is None and table.named("s3") == []


def test_what_adding_a_module_costs_does_not_depend_on_the_symbols_that_are_there():
    def calls(there: int) -> int:
        table, made = SymbolTable(), []
        table.add("there", [Symbol(f"t{i}", 16 * i, 16, "there") for i in range(there)])
        gc.disable()  # the finalizers of a collection, and callbacks of gc, would be counted
        sys.setprofile(lambda _frame, event, _function: made.append(event))
        try:
            table.add("new", [Symbol("f", 1 << 40, 16, "new")])
            found = table.lookup("f"), table.describe((1 << 40) + 1)
            table.remove("new")
        finally:
            sys.setprofile(None)
            gc.enable()
        assert found == (1 << 40, "f+0x1/0x10 [new]")
        return len(made)

    assert calls(10) == calls(20_000)


@pytest.mark.parametrize("names", [("rec", "rec.localalias"), ("rec.localalias", "rec")])
def test_a_compilers_alias_is_not_what_a_function_is_called(names):
    table = SymbolTable()
    table.add("m", [Symbol(name, 1 << 20, 16, "m") for name in names])
    assert table.describe((1 << 20) + 4) == "rec+0x4/0x10 [m]"
    table.add("inner", [Symbol("rec.part", (1 << 20) + 8, 4, "inner")])
    assert table.describe((1 << 20) + 9) == "rec.part+0x1/0x4 [inner]"


def test_readers_see_whole_modules_while_others_come_and_go():
    table = SymbolTable()
    table.add("fixed", [Symbol("f", 1 << 20, 16, "fixed")])
    wrong, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            if table.lookup("f") != 1 << 20 or table.describe((1 << 20) + 1) != "f+0x1/0x10 [fixed]":
                wrong.append(1)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for i in range(200):
        table.add("passing", [Symbol(f"p{i}_{j}", 4096 * (j + 1), 16, "passing") for j in range(50)])
        table.remove("passing")
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
