"""Handlers in the native language: their signature, maps, per-task variables, reads from bad pointers."""

from __future__ import annotations

import ctypes
import gc
import linecache
import threading
from typing import Any

import native_probes as given
import pytest
from isolation import isolated
from programs import basic, site_of

import fprobe
from ftrace.core.maps import Map
from sandbox.native import NativeError


@pytest.fixture
def module():
    loaded = basic()
    for made in vars(given).values():
        if isinstance(made, Map):
            made.clear()
    yield loaded
    loaded.unload()


def test_untyped_parameters_and_maps_of_each_kind(module: Any) -> None:
    with fprobe.attach("leaf", entry=given.count_all) as probe:
        assert module["loop"](10) == 10
    assert probe.hits == 10
    assert dict(given.by_ip) == {site_of(module, "leaf"): 10}
    assert list(given.cells) == [0, 20, 0, 0] and given.totals[0] == 10


def test_values_that_find_no_place_are_counted(module: Any) -> None:
    with fprobe.attach("leaf", entry=given.sort_argument):
        for value in (1, 1, 2, 3, 105, 0):
            module["leaf"](value)
    assert dict(given.narrow) == {1: 2, 2: 1} and given.narrow.dropped == 2
    assert list(given.cells) == [0, 2, 1, 1] and given.cells.dropped == 1
    assert [(b.low, b.high, b.count) for b in given.sizes] == [(1, 2, 2), (2, 4, 2), (64, 128, 1)]
    assert [(b.low, b.high, b.count) for b in given.steps] == [(100, 110, 1)] and given.steps.dropped == 4
    assert [(row, b.low, b.count) for row, b in given.rows.items()] == [(1, 1, 2), (2, 2, 1)]
    assert given.rows.dropped == 2
    record = given.seen[7]
    assert (record.calls, list(record.sizes), record.least) == (5, [0, 112, 0, 0], -5)


def test_the_role_decides_what_is_returned(module: Any) -> None:
    with fprobe.attach("leaf", exit=given.sort_argument):
        module["leaf"](1)
    assert len(given.sizes) == 1
    with fprobe.attach("leaf", entry=given.cancel, exit=given.sort_argument):
        module["leaf"](1)
    assert len(given.sizes) == 1, "the entry handler cancels the exit"


@pytest.mark.parametrize(
    ("handlers", "message"),
    [
        ({"exit": given.cancel}, "returns void: write `return` alone"),
        ({"entry": given.wrong_ip}, "wrong_ip takes its entry_ip as u32; it is u64"),
        ({"entry": given.typed}, "typed returns u64; an entry_handler returns i32"),
        ({"entry": given.text_word}, r"text_word takes 2 parameters \(u8, u8\); an entry_handler takes \(fp, entry_ip"),
    ],
)
def test_what_does_not_fit_the_probe_is_refused(module: Any, handlers: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, NativeError), match=message):
        fprobe.attach("leaf", **handlers).attach()


def test_declared_entry_data_is_there(module: Any) -> None:
    with fprobe.attach("leaf", entry=given.remember, exit=given.recall) as probe:
        module["leaf"](30)
    assert probe.fp.entry_data_size == 8 and given.cells[0] == 30
    with pytest.raises(ValueError, match="entry_data_size is 4, but the handlers' entry data takes 8 bytes"):
        fprobe.attach("leaf", entry=given.remember, exit=given.recall, entry_data_size=4)


@isolated(shared=True)
def test_entry_data_that_a_call_does_not_have_is_no_null_pointer() -> None:
    module = basic()
    with fprobe.attach("factorial", entry=given.remember, exit=given.recall, nr_maxactive=1) as probe:
        assert module["factorial"](5) == 120
    assert probe.counts.missed_nodes == 4 and given.cells[0] == 5
    with fprobe.attach("leaf", entry=given.is_missing):
        module["leaf"](1)
    assert given.cells[2] == 1, "who asks is told"


@isolated(shared=True)
def test_maps_of_several_threads_add_up() -> None:
    module = basic()
    with fprobe.attach("leaf", entry=given.count_all):
        threads = [threading.Thread(target=module["loop"], args=(20_000,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        module["leaf"](1)
    assert list(given.by_ip.values()) == [80_001] and given.totals[0] == 80_001 and given.cells[1] == 160_002
    assert dict(given.depth.items())[threading.get_native_id()] == 1


def test_a_hash_can_be_asked_without_making_a_key(module: Any) -> None:
    with fprobe.attach("other", entry=given.count_all):
        module["other"](1)
    with fprobe.attach("leaf", entry=given.lookups):
        module["leaf"](site_of(module, "other"))
        module["leaf"](12345)
    assert list(given.cells)[:2] == [1, 3] and len(given.by_ip) == 1


@isolated
def test_bad_pointers_are_counted_and_harmless() -> None:
    module = basic()
    word = (ctypes.c_uint64 * 2)(4711, 1)
    before = fprobe.probe_read_faults()
    with fprobe.attach("leaf", entry=given.read_argument):
        module["leaf"](ctypes.addressof(word))
        for address in (0, 8, 1 << 47, (1 << 64) - 16, 0x8000_0000_0000_0000):
            module["leaf"](address)
    assert list(given.cells)[:3] == [4711, 5, 0]
    assert fprobe.probe_read_faults() - before == 5


@isolated
def test_texts_are_cut_and_terminated() -> None:
    import mmap

    module = basic()
    page = mmap.mmap(-1, mmap.PAGESIZE)
    text = ctypes.create_string_buffer(b"x" * 100)
    with fprobe.attach("leaf", entry=given.read_text):
        module["leaf"](ctypes.addressof(text))
        assert list(given.cells) == [1008, 2, 0, 0]
        text.value = b"y"
        module["leaf"](ctypes.addressof(text))
        assert list(given.cells) == [1002, 1, 0, 0]
        module["leaf"](16)
        assert list(given.cells) == [1000, 0, 1, 0]
    page.close()


def _defined(source: str) -> Any:
    name = f"<handler {abs(hash(source))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names: dict[str, Any] = {}
    exec(compile(source, name, "exec"), names)
    return names["handler"]


HEAD = """from __future__ import annotations
import fprobe
from ftrace.core.maps import Map
from sandbox.native import addressof, array, i32, probe_read, ptr, u8, u64, zeroed
hits = fprobe.Hash(u64, u64, 16)
shared = fprobe.Array(u64, 2, shared=True)
sizes = fprobe.Histogram()
depth = fprobe.per_task(u64)

@fprobe.native
def handler(fp, ip, ret_ip, regs, data):
    """


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hits[0.5] += 1", "floating"),
        ("hits.push(ip)", "Hash has no method 'push'; it has: get, has"),
        ("sizes.add(ip, ip)", "sizes.add takes 1 argument, not 2"),
        ("sizes[0] += 1", "Histogram cannot be indexed"),
        ("x = hits", r"Hash has no value of its own: write name\[key\]"),
        ("shared[0] <<= 1", "other threads change this map at the same time"),
        ("depth += 1", "'depth' is used before a value is assigned to it: it is local here"),
        ("depth.other += 1", "has no field 'other'"),
        (
            "x: array[u64, 2] = zeroed\n    probe_read(addressof(x), ip, 32)",
            r"the size is 32, but the destination, array\[u64, 2\], has 16 bytes",
        ),
        ("probe_read(ip, ip, 8)", r"probe_read\(\) takes a pointer: write addressof\(...\) here, not u64"),
        ("while True:\n        pass", "a while loop has no visible bound"),
    ],
)
def test_wrong_handlers_are_refused_where_they_are_written(line: str, message: str) -> None:
    with pytest.raises(NativeError, match=message) as caught:
        _defined(f"{HEAD}{line}\n")
    assert caught.value.filename.startswith("<handler") and (caught.value.lineno or 0) >= 11


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fprobe.Array(given.u64, 0), "the size of the Array is 0; it must be between 1 and"),
        (lambda: fprobe.Hash(given.Seen, given.u64, 4), "the key type of the Hash is Seen; it must be an integer type"),
        (
            lambda: fprobe.Hash(given.u64, int, 4),
            "a hash's value must be an integer, a pointer or a struct, not <class 'int'>",
        ),
        (lambda: fprobe.Histogram(70), "buckets is 70 and low is 0; without a step, at most 65 and 0 are allowed"),
        (lambda: fprobe.Array(given.u64, 1 << 40), "a map of 1099511627776 elements of 8 bytes takes"),
    ],
)
def test_maps_that_cannot_be_made(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_handlers_of_one_name_do_not_get_into_each_others_way(module: Any) -> None:
    first, second = (_defined(f"{HEAD}hits[{number}] += 1\n") for number in (1, 2))
    with fprobe.attach("leaf", entry=first), fprobe.attach("leaf", entry=second):
        module["leaf"](0)
    assert [dict(handler.namespace["hits"]) for handler in (first, second)] == [{1: 1}, {2: 1}]


def test_what_was_found_well_is_not_checked_again(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("FPROBE_CACHE_DIR", str(tmp_path))
    text = f"{HEAD}hits[ip] += 77\n"

    def is_checked(source: str) -> bool:
        found = "typed" in vars(_defined(source))
        gc.collect()  # its maps, whose names would be taken
        return found

    assert is_checked(text)
    assert not is_checked(text)
    assert is_checked(text.replace("77", "78"))


@isolated(shared=True)
def test_a_shared_hash_loses_nothing() -> None:
    module = basic()
    with fprobe.attach("leaf", entry=given.count_arguments):
        threads = [threading.Thread(target=lambda: [module["loop"](250) for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rounds = 4 * 200
    expected = {0: rounds, 250: rounds, **dict.fromkeys(range(1, 250), 2 * rounds)}
    assert dict(given.common) == expected and given.common.dropped == 0


@isolated
def test_a_bad_destination_is_no_crash_either() -> None:
    module = basic()
    before = fprobe.probe_read_faults()
    with fprobe.attach("leaf", entry=given.write_badly):
        module["leaf"](16)
        module["leaf"](1 << 63)
    assert list(given.cells) == [2, 2, 2, 2] and fprobe.probe_read_faults() - before == 6


def test_division_by_zero_and_bad_indices_are_counted(module: Any) -> None:
    with fprobe.attach("leaf", entry=given.blunder):
        module["leaf"](0)
        assert list(given.cells)[:2] == [5, 0] and fprobe.native_mishaps(given.blunder) == (1, 0)
        module["leaf"](4)
        assert list(given.cells)[:2] == [5, 9] and fprobe.native_mishaps(given.blunder) == (1, 1)
    with pytest.raises(TypeError, match="5 is not a native handler; decorate"):
        fprobe.native_mishaps(5)


@isolated(cold=True)  # others than ours have variables there
def test_the_room_for_per_task_variables_is_limited() -> None:
    made = [fprobe.per_task(given.u64)]
    with pytest.raises(
        MemoryError, match="a per-task variable of 8 bytes does not fit: 0 bytes are left in a task's record"
    ):
        while True:
            made.append(fprobe.per_task(given.u64))
    assert len(made) + 1 == 1024 // 8


@isolated(shared=True)
def test_a_new_thread_finds_its_variables_zero() -> None:
    module = basic()
    seen = []

    def body() -> None:
        module["leaf"](1)
        seen.append(dict(given.depth.items())[threading.get_native_id()])

    with fprobe.attach("leaf", entry=given.count_all):
        for _ in range(5):
            thread = threading.Thread(target=body)
            thread.start()
            thread.join()
    assert seen == [1] * 5
