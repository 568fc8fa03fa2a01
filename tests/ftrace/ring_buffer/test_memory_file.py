"""The memory file of the ring buffer: what it is, who can open it, what it refuses."""

from __future__ import annotations

import mmap
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from isolation import isolated, run_source
from test_ring_buffer import called, seconds

TESTS = Path(__file__).parent


@isolated
def test_it_cannot_be_made_shorter_under_its_users() -> None:
    from ftrace.ring_buffer.arena import arena
    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer()
    called(buffer, range(3))
    with pytest.raises(PermissionError):
        os.ftruncate(arena().descriptor, 4096)
    assert seconds(buffer.records()) == [0, 1, 2]
    assert not os.get_inheritable(arena().descriptor)


@pytest.mark.stress
@isolated(FPROBE_DENY="memfd")
def test_without_memfd_a_file_in_no_directory_serves() -> None:
    from ftrace.ring_buffer.arena import arena
    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer()
    called(buffer, range(300))
    assert seconds(buffer.records()) == list(range(300))
    assert os.fstat(arena().descriptor).st_nlink == 0


KILLED = """
import os, signal, sys
sys.path[:0] = {paths!r}
from test_ring_buffer import called
from ftrace.ring_buffer.buffer import Buffer
buffer = Buffer("of the dead")
called(buffer, range(500))
os.kill(os.getpid(), signal.SIGKILL)
"""


def read_back(path: Path) -> list[int]:
    """The second arguments in a memory file, by nobody but its name."""
    from ftrace.ring_buffer.reader import of_slot
    from ftrace.ring_buffer.view import MemoryFile, RingView

    with path.open("rb") as file:
        memory = MemoryFile(memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
    (ring,) = memory.rings()
    assert (ring.name, ring.clock) == ("of the dead", "local")
    view = RingView(memory, ring.number, ring.order)
    return seconds(record for slot in view.slots() for record in of_slot(slot, view.pages(slot)))


def test_a_file_that_is_asked_for_is_read_after_a_kill_and_is_only_the_users(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    source = KILLED.format(paths=[str(TESTS), str(TESTS.parents[1])])
    environment = {"FPROBE_BUFFER": str(path), "FPROBE_BUFFER_POOL_KB": "2048"}
    assert run_source(source, **environment).returncode == -signal.SIGKILL
    assert read_back(path) == list(range(500))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    again = run_source(source, **environment)
    assert "exists; name a file that does not, or remove it" in again.stderr and again.returncode == 1
    assert path.read_bytes() == before


@pytest.mark.stress
def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    done = run_source(KILLED.format(paths=[str(TESTS), str(TESTS.parents[1])]), FPROBE_BUFFER=str(link))
    assert done.returncode == 1 and "exists" in done.stderr
    assert not target.exists()


@pytest.mark.parametrize(
    ("file", "limit", "message"),
    [("pages", 64 << 10, "which cannot be created with"), ("nothing/pages", None, "No such file or directory")],
)
def test_a_file_that_cannot_be_made_is_named(tmp_path: Path, file: str, limit: int | None, message: str) -> None:
    path = tmp_path / file
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))" if limit else ""
    done = run_source(f"{limited}\nfrom ftrace.ring_buffer.backing import create\ncreate(1 << 20, {str(path)!r})")
    assert done.returncode == 1 and message in done.stderr
    assert f"FPROBE_BUFFER names {str(path)!r}" in done.stderr
    assert not path.exists()


def test_a_pool_of_no_size_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from ftrace.ring_buffer.buffer import Buffer; Buffer()"],
        capture_output=True, text=True, timeout=60, env={**os.environ, "FPROBE_BUFFER_POOL_KB": "12"},
    )  # fmt: skip
    assert "FPROBE_BUFFER_POOL_KB is '12'; it must be a number of KiB between 512 and 16777216" in done.stderr


def test_another_file_is_not_taken_for_one() -> None:
    from ftrace.ring_buffer.view import MemoryFile

    for data in (bytes(4096), b"trcebuf2" + b"\xff" * 4088):
        with pytest.raises(ValueError, match="not the memory file of a ring buffer"):
            MemoryFile(memoryview(bytearray(data)))
