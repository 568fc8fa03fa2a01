"""HAZARDS 11: a program closes all descriptors that it does not know. Its next files get the numbers of ours."""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path

import pytest
from isolation import isolated

import fprobe
import kprobes
from sandbox.process.descriptors import KeptDescriptor, close_own, file_of
from sandbox.symbols import perfmap

FILES = 60


def own_files(folder):
    """Close everything but the standard descriptors, and open files of the program's own."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    opened = [os.open(f"{folder}/{number}", os.O_CREAT | os.O_RDWR) for number in range(FILES)]
    for each in opened:
        os.write(each, b"own")
    return opened


def contents(opened):
    return {os.pread(each, 100, 0) for each in opened}


def use_probes():
    with fprobe.attach("libz:*32*", action=fprobe.Stat()), fprobe.event("p:again libz:adler32_z") as events:
        zlib.crc32(b"x")
        zlib.adler32(b"x")
        assert [record["event"] for record in events.records()] == ["again"]
    with kprobes.attach("libz:crc32_z", action=kprobes.Count()) as probe:
        zlib.crc32(b"x")
    assert probe.hits == 1


@isolated
def test_the_programs_next_files_are_not_written_truncated_or_closed():
    with tempfile.TemporaryDirectory() as folder:
        check_own_files(folder)


def check_own_files(folder):
    os.environ.pop(perfmap.OPT_OUT, None)
    perfmap.perf_map.is_wanted = True
    perfmap.perf_map._directory = Path(folder)
    events = fprobe.event("p:crc libz:crc32").attach()
    probe = fprobe.attach("libz:crc32", action=fprobe.Stat()).attach()
    zlib.crc32(b"x")
    opened = own_files(folder)
    child = os.fork()
    if not child:
        use_probes()
        os._exit(contents(opened) != {b"own"})
    assert os.waitpid(child, 0)[1] == 0
    use_probes()
    probe.detach()
    events.detach()
    use_probes()
    assert contents(opened) == {b"own"}


def test_a_kept_descriptor_is_opened_again(tmp_path):
    path = str(tmp_path / "file")
    kept = KeptDescriptor(os.open(path, os.O_CREAT | os.O_RDWR), lambda: os.open(path, os.O_RDWR))
    before = kept.number
    assert before > 100
    os.close(before)
    os.dup2(0, before)
    now = kept.number
    assert now != before and file_of(now) == file_of(os.open(path, os.O_RDONLY))
    kept.close()
    assert file_of(now) == (0, 0) and file_of(before) == file_of(0)
    close_own(before, file_of(0))
    assert file_of(before) == (0, 0)


def test_a_kept_descriptor_whose_file_is_another_one_is_an_error(tmp_path):
    path = tmp_path / "file"
    kept = KeptDescriptor(os.open(path, os.O_CREAT | os.O_RDWR), lambda: os.open(path, os.O_RDWR))
    os.close(kept.number)
    path.rename(tmp_path / "moved")
    with pytest.raises(OSError, match="closed a descriptor of fprobe's, and the file cannot be opened again: No such"):
        _ = kept.number
    path.write_text("another")
    with pytest.raises(OSError, match="there is another file under the name"):
        _ = kept.number
