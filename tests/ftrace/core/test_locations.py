"""The location table: FT-2, FT-6, FT-7, FT-24."""

from __future__ import annotations

import shutil

import pytest
from isolation import isolated
from programs import basic, site_of

import sandbox
from ftrace.core.glob import parse
from ftrace.core.sites.locations import LocationSet
from ftrace.core.tracer import tracer


def named(program, name):
    table = tracer().table
    return table.location(site_of(program, name))


def test_ft2_ascending_within_a_module_and_modules_in_the_order_of_loading(program):
    later = sandbox.load(
        "define i64 @late(i64 %x) { ret i64 %x }\ndefine i64 @later(i64 %x) { ret i64 %x }\n", name="late"
    )
    locations = list(tracer().table.everything().each())
    mine = [location.ip for location in locations if location.block.module is program]
    assert mine == sorted(mine) == list(program.sites)
    assert [location.name for location in locations[-2:]] == ["late", "later"]
    assert str(locations[-1]) == "later [late]"
    later.unload()


def test_ft6_location_range_is_inclusive_at_both_ends(program):
    table = tracer().table
    ip = site_of(program, "leaf")
    for start, end, found in [
        (ip, ip, True), (ip + 4, ip + 4, True), (ip + 5, ip + 5, False), (ip - 1, ip - 1, False), (ip - 1, ip, True),
        (ip + 4, ip + 100, True), (ip - 100, ip + 100, True), (ip + 2, ip + 3, True),
    ]:  # fmt: skip
        location = table.location_range(start, end)
        assert (location is not None and start - 4 <= location.ip <= end) or not found, (start - ip, end - ip)
        if end - start < 4:
            assert (location is not None) == found
    assert table.location_range(0, 100) is None


def test_ft6_a_range_over_several_sites_has_one_of_them(program):
    first, last = program.sites[0], program.sites[-1]
    location = tracer().table.location_range(first, last)
    assert location is not None and location.ip in program.sites


def test_ft7_any_byte_of_the_site_or_the_functions_address(program):
    table = tracer().table
    ip = site_of(program, "leaf")
    for offset in range(5):
        assert table.location(ip + offset).ip == ip
    assert table.location(program.symbol("leaf").address).ip == ip
    assert table.location(ip + 5) is None
    assert table.location(0) is None and table.location(1 << 63) is None


def test_ft7_the_site_may_lie_behind_the_functions_first_bytes():
    module = basic(flavour="mcount")
    symbol = module.symbol("leaf")
    ip = site_of(module, "leaf")
    assert ip > symbol.address
    table = tracer().table
    assert table.location(symbol.address).ip == ip
    assert table.location(symbol.address + 1) is None  # neither the function's address nor in the site
    assert table.location(ip + 4).ip == ip
    module.unload()


def test_every_location_of_a_module_goes_with_it(program):
    table = tracer().table
    before = len(table)
    module = basic()
    assert len(table) == before + len(module.sites)
    site = site_of(module, "leaf")
    module.unload()
    assert len(table) == before and table.location(site) is None


def test_selections_are_sets(program):
    table = tracer().table
    some, others = table.select(parse("[lo]*")), table.select(parse("l*"))
    assert (some & others).count() + (some - others).count() == some.count()
    assert (some | others).count() == some.count() + (others - some).count()
    assert not some - some and (some - some) == LocationSet()
    names = [location.name for location in some.each() if location.block.module is program]
    assert sorted(names) == ["leaf", "loop", "other"]


def test_named_is_exact_and_takes_the_first(program):
    table = tracer().table
    assert table.named("leaf").name == "leaf"
    assert table.named("lea") is None and table.named("") is None and table.named("l*") is None


def test_ft32_an_exact_name_is_that_of_every_function_called_so(tmp_path):
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    text = "static long twin(long x) { return x * 3; } long {0}(long x) { return twin(x) + twin(x + 1); }"
    sources = [tmp_path / f"{name}.c" for name in ("first", "second")]
    for source in sources:
        source.write_text(text.replace("{0}", source.stem))
    module = sandbox.load(sources[0], name="twins", cflags=["-fno-inline", str(sources[1])])
    table = tracer().table
    for name, count in {"twin": 2, "first": 1, "second": 1, "twi": 0, "win": 0}.items():
        found = [location for location in table.select(parse(name)).each() if location.block.module is module]
        assert [location.name for location in found] == [name] * count, name
        assert len({location.ip for location in found}) == count
    module.unload()


def test_ft34_positions_count_over_all_modules(program):
    table = tracer().table
    everything = list(table.everything().each())
    for position in (0, len(everything) - 1):
        assert table.at(position) == everything[position]
    assert table.at(-1) is None and table.at(len(everything)) is None
    assert list(table.select(parse(str(len(everything)))).each()) == everything[-1:]
    assert not table.select(parse(str(len(everything) + 1)))


@isolated
def test_a_tracer_that_is_started_while_a_module_goes_does_not_keep_its_locations():
    """It would patch what is there later. Each notifier that was told of the module hears that it goes."""
    from sandbox.loading.module import ModuleState, register_module_notifier

    heard = []
    register_module_notifier(lambda event, _: tracer() if event is ModuleState.GOING else heard.append(event))
    register_module_notifier(lambda event, _: heard.append(event), first=True)
    basic().unload()
    assert tracer().table.blocks == []
    assert heard == [ModuleState.COMING] * 2 + [ModuleState.LIVE] * 2 + [ModuleState.GOING]


@isolated
def test_the_tracer_is_started_once_by_however_many_threads():
    import threading

    together = threading.Barrier(4)
    found = []

    def start():
        together.wait()
        found.append(tracer())

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1 and len(found) == 4
