"""The map that profilers read."""

from __future__ import annotations

import errno
import os
import threading
import tracemalloc

import pytest

from sandbox.symbols.perfmap import OPT_OUT, Declarations, PerfMap


@pytest.fixture
def perf_map(tmp_path, monkeypatch):
    monkeypatch.delenv(OPT_OUT, raising=False)
    return PerfMap(tmp_path)


def test_lines_are_what_perf_reads(perf_map):
    perf_map.add(0x7F001000, 48, "vfs_read [demo]")
    perf_map.add_all([(0x7F002000, 0x100, "stub of vfs_read"), (0x7F003000, 5, "x")])
    assert perf_map.path.name == f"perf-{os.getpid()}.map"
    assert perf_map.path.read_text() == "7f001000 30 vfs_read [demo]\n7f002000 100 stub of vfs_read\n7f003000 5 x\n"


def test_what_is_there_already_is_kept(perf_map):
    perf_map.path.write_text("1 2 another runtime\n")
    perf_map.add(3, 4, "ours")
    assert perf_map.path.read_text() == "1 2 another runtime\n3 4 ours\n"


def test_what_an_ended_process_of_the_same_number_has_left_is_gone(perf_map):
    perf_map.path.write_text("1 2 long ago\n")
    os.utime(perf_map.path, (1e9, 1e9))
    perf_map.add(3, 4, "ours")
    perf_map.add(5, 6, "ours too")
    assert perf_map.path.read_text() == "3 4 ours\n5 6 ours too\n"


def test_a_link_is_not_followed(perf_map, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    perf_map.path.symlink_to(victim)
    perf_map.add(1, 2, "x")
    assert victim.read_text() == "precious\n"


def test_a_file_of_somebody_else_is_not_written(perf_map, monkeypatch):
    perf_map.path.write_text("theirs\n")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    perf_map.add(1, 2, "x")
    assert perf_map.path.read_text() == "theirs\n"


def test_what_could_not_be_written_is_written_with_what_comes_next(perf_map, monkeypatch):
    def no_descriptor(*_arguments):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as few:
        few.setattr(os, "open", no_descriptor)
        perf_map.add(1, 2, "lost?")
    assert not perf_map.path.exists()
    perf_map.add(3, 4, "later")
    assert perf_map.path.read_text() == "1 2 lost?\n3 4 later\n"


def test_opting_out(perf_map, monkeypatch):
    monkeypatch.setenv(OPT_OUT, "1")
    perf_map.add(1, 2, "x")
    assert not perf_map.path.exists()


def test_a_directory_that_is_not_there_is_no_error(tmp_path, monkeypatch):
    monkeypatch.delenv(OPT_OUT, raising=False)
    missing = PerfMap(tmp_path / "nosuch")
    missing.add(1, 2, "x")
    missing.add(3, 4, "y")


def test_a_child_of_fork_writes_a_map_of_its_own_with_all_of_it(perf_map):
    perf_map.add(1, 2, "before")
    child = os.fork()
    if child == 0:
        try:
            perf_map.add(3, 4, "after")
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert perf_map.path.read_text() == "1 2 before\n"
    assert (perf_map.path.parent / f"perf-{child}.map").read_text() == "1 2 before\n3 4 after\n"


def test_threads_do_not_mix_lines(perf_map):
    def add(number):
        for i in range(100):
            perf_map.add(number, i, "name " * 20)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = perf_map.path.read_text().splitlines()
    assert len(lines) == 400 and all(line.endswith("name name ") for line in lines)


def test_lines_of_others_are_told_from_ours_wherever_they_are_in_the_file(perf_map):
    news = Declarations(perf_map).news
    others = [(0x10 * number, 0x10, f"theirs {number}") for number in range(1, 5)]

    def other_writes(address, size, name):
        with perf_map.path.open("a") as stream:
            stream.write(f"{address:x} {size:x} {name}\n")

    other_writes(*others[0])
    perf_map.add_all([(0x7000, 1, "ours"), (0x7010, 1, "ours too")])
    other_writes(*others[1])
    assert [(each.address, each.size, each.name) for each in news()] == others[:2]
    perf_map.add(0x7000, 2, "ours again")
    other_writes(*others[2])
    perf_map.add(0x7000, 3, "ours once more")
    assert [(each.address, each.size, each.name) for each in news()] == others[2:3]
    os.truncate(perf_map.path, 0)
    perf_map.add(0x7000, 4, "ours after it was cut")
    other_writes(*others[3])
    assert [(each.address, each.size, each.name) for each in news()] == others[3:]


def test_code_that_comes_and_goes_at_the_same_addresses_takes_no_more_memory(perf_map):
    def added(times):
        for number in range(times):
            perf_map.add(0x7000 + number % 8, 1, f"name of {number}")

    added(100)
    tracemalloc.start()
    try:
        added(2000)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(perf_map.path.read_text().splitlines()) == 2100
    assert grown < 20_000


def test_loading_writes_it(run_python):
    printed = run_python(
        """
import os
from sandbox import load
program = load("define void @in_the_map() { ret void }", name="mapped")
print(open(f"/tmp/perf-{os.getpid()}.map").read() == f"{program['in_the_map'].address:x} 6 in_the_map [mapped]\\n")
os.unlink(f"/tmp/perf-{os.getpid()}.map")
""",
        FPROBE_NO_PERF_MAP="",
    )
    assert printed == "True\n"
