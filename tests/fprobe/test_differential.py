"""Generated programs give the same results unprobed, with every function probed, and with probes coming and going."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import ctypes
import threading

import pytest
from isolation import isolated
from programs import assert_untouched, text_of

from sandbox.x86_64.encoding import NOP5

ROUNDS = 3
BATCH = 5
"""Programs per process."""


class Loaded:
    """A generated program, and how often each of its functions has been called."""

    def __init__(self, seed: int) -> None:
        from program_generator import CALL_COUNTS, generate

        import sandbox

        self.program = generate(seed, functions=30)
        self.module = sandbox.load(self.program.ir, name=f"seed{seed}", opt=seed % 3)
        address = next(symbol.address for symbol in self.module.data if symbol.name == CALL_COUNTS)
        self._counts = (ctypes.c_int64 * len(self.program.functions)).from_address(address)
        self.text = text_of(self.module)
        self.traced = [symbol.name for symbol in self.module.site_functions if symbol.name in self.program.functions]

    def run(self) -> tuple[int, dict[str, int]]:
        """The checksum, and the calls of each traced function."""
        before = list(self._counts)
        result = self.module[self.program.entry](ROUNDS)
        calls = [now - then for now, then in zip(self._counts, before, strict=True)]
        return result, {
            name: count
            for name, count in zip(self.program.functions, calls, strict=True)
            if count and name in self.traced
        }

    def names_of(self, hits: dict[int, int]) -> dict[str, int]:
        """Hits by address to hits by name, of the functions that count their calls."""
        sites = dict(zip(self.module.sites, self.module.site_functions, strict=True))
        return {sites[ip].name: count for ip, count in hits.items() if sites[ip].name in self.traced}


def check_everything_probed(loaded: Loaded) -> None:
    """Entry only and both ends; by action, Python handler and foreign C function."""
    import fprobe

    expected, calls = loaded.run()
    everything = list(loaded.module.sites)
    with fprobe.attach(everything, action=fprobe.Count()) as probe:
        assert loaded.run() == (expected, calls)
    assert probe.hits >= sum(calls.values()) and probe.counts.missed == 0
    with fprobe.attach(everything, action=fprobe.Stat(), nr_maxactive=100_000) as probe:
        assert loaded.run() == (expected, calls)
    hits = {ip: stat.hits for ip, stat in probe.action.functions().items()}
    assert probe.counts.missed == 0 and loaded.names_of(hits) == calls
    seen: dict[int, int] = {}
    back: dict[int, int] = {}

    def entry(fp, ip, ret, regs, data):
        seen[ip] = seen.get(ip, 0) + 1
        data[:8] = ip.to_bytes(8, "little")

    def exit_(fp, ip, ret, regs, data):
        assert bytes(data[:8]) == ip.to_bytes(8, "little")
        back[ip] = back.get(ip, 0) + 1

    record = fprobe.Record(1 << 16)
    with (
        fprobe.attach(everything, entry=entry, exit=exit_, entry_data_size=8, nr_maxactive=100_000) as probe,
        fprobe.attach(everything, action=record, nr_maxactive=100_000),
    ):
        assert loaded.run() == (expected, calls)
    assert probe.fp.errors.first is None and probe.counts.missed == 0
    assert loaded.names_of(seen) == loaded.names_of(back) == calls
    assert record.written == sum(seen.values())


def check_coming_and_going(loaded: Loaded) -> None:
    """Another thread attaches and detaches all the time, over one word and over breakpoints in turn."""
    import fprobe
    from ftrace.core.runtime import runtime

    expected = loaded.run()
    stop = threading.Event()
    failures: list[BaseException] = []
    everything = list(loaded.module.sites)

    def churn() -> None:
        turn = 0
        try:
            while not stop.is_set():
                runtime().force_breakpoints = turn & 1
                some = everything[turn % 7 :: 1 + turn % 3]
                with fprobe.attach(some, action=fprobe.Stat(), nr_maxactive=1 + turn % 50):
                    if turn % 5 == 0:
                        with fprobe.attach(everything, exit=lambda *hit: None, nr_maxactive=3):
                            pass
                turn += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(5):
            assert loaded.run() == expected
    finally:
        stop.set()
        thread.join()
        runtime().force_breakpoints = 0
    assert failures == []


def check(seeds: range) -> None:
    for seed in seeds:
        loaded = Loaded(seed)
        check_everything_probed(loaded)
        check_coming_and_going(loaded)
        assert text_of(loaded.module) == loaded.text
        assert all(ctypes.string_at(site, 5) == NOP5 for site in loaded.module.sites)
        assert_untouched()
        loaded.module.unload()


@pytest.mark.stress
@pytest.mark.parametrize("first", [0, pytest.param(BATCH, marks=pytest.mark.stress)])
@isolated(timeout=60)
def test_generated_programs_do_the_same_when_probed(first):
    check(range(first, first + BATCH))


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(2 * BATCH, 200, 10))
@isolated(timeout=300)
def test_generated_programs_do_the_same_when_probed_at_length(first):
    check(range(first, first + 10))
