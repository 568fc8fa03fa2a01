"""Hazards of patched entries of libraries: forks, dlclose, text that somebody else has patched, files that are replaced."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import pytest
from isolation import isolated

import fprobe
import kprobes

DATA = b"text to be compressed, again and again " * 200
SOURCE = """
long twice(long x) { return x * 2 + 1; }
long thrice(long x) { return twice(x) + x; }
"""


def built(name: str = "libtwice.so", *flags: str) -> Path:
    directory = Path(mkdtemp(prefix="entries-"))
    (directory / "twice.c").write_text(SOURCE)
    path = directory / name
    given = ["-O1", "-shared", "-fPIC", "-fno-optimize-sibling-calls", *flags]
    subprocess.run(["gcc", *given, "-o", str(path), str(directory / "twice.c")], check=True)
    return path


@isolated(timeout=100)
def test_parent_and_child_of_a_fork_go_their_own_ways() -> None:
    expected = zlib.compress(DATA)
    probe = fprobe.attach("libz:*", action=fprobe.Stat()).attach()
    child = os.fork()
    if not child:
        assert zlib.compress(DATA) == expected
        assert probe.hits > 10
        probe.detach()
        hits = probe.hits
        assert zlib.compress(DATA) == expected
        assert probe.hits == hits
        with fprobe.attach("libz:crc32_z", action=fprobe.Count()) as own:
            zlib.crc32(b"abc")
        assert own.hits == 1
        os._exit(7)
    assert zlib.compress(DATA) == expected
    probe.detach()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


PROBED: dict[str, Callable[[], fprobe.Attachment | kprobes.Attachment | kprobes.ReturnAttachment]] = {
    "fprobe": lambda: fprobe.attach("libtwice:twice", action=fprobe.Stat()),
    "kprobe": lambda: kprobes.attach("libtwice:twice", action=kprobes.Count()),
    "kretprobe": lambda: kprobes.attach_return("libtwice:twice", action=kprobes.Count()),
}


@pytest.mark.parametrize("deleted", [False, True], ids=["", "deleted"])
@pytest.mark.parametrize("kind", PROBED)
@isolated(timeout=100)
def test_a_library_that_is_closed_while_it_is_probed_stays(kind: str, deleted: bool) -> None:
    """A kprobe's breakpoint or jump was written over whatever had been mapped there since, or over nothing."""
    path = built()
    library = ctypes.CDLL(str(path))
    twice = library.twice
    if deleted:
        path.unlink()
    probe = PROBED[kind]().attach()
    libc = ctypes.CDLL(None)
    libc.dlclose.argtypes = (ctypes.c_void_p,)
    assert libc.dlclose(library._handle) == 0
    assert twice(4) == 9
    assert probe.hits == 1
    if not deleted:
        assert ctypes.CDLL(str(path)).twice(5) == 11
        assert probe.hits == 2
    probe.detach()
    assert twice(4) == 9


@pytest.mark.parametrize("flags", [("-fpatchable-function-entry=5",), ("-pg", "-mfentry"), ("-s",)], ids=str)
@isolated(timeout=100)
def test_libraries_with_stubs_of_their_own_and_stripped_ones(flags: tuple[str, ...]) -> None:
    if "-mfentry" in flags:
        (hooks := Path(mkdtemp()) / "hooks.c").write_text("void __fentry__(void) { }\n")
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", f"{hooks.parent}/libhooks.so", str(hooks)], check=True)
        ctypes.CDLL(f"{hooks.parent}/libhooks.so", mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(built("libtwice.so", *flags)))
    with fprobe.attach("libtwice:t*", action=fprobe.Stat()) as probe:
        assert sorted(probe.targets) == ["thrice", "twice"]
        assert library.thrice(5) == 16
    assert (probe.hits, probe.counts.missed) == (2, 0)
    assert library.thrice(5) == 16


@isolated(timeout=100)
def test_a_breakpoint_of_a_debugger_is_left_alone() -> None:
    from sandbox.memory.mappings import write_through_kernel

    library = ctypes.CDLL(str(built()))
    address = ctypes.cast(library.twice, ctypes.c_void_p).value or 0
    original = ctypes.string_at(address, 1)
    write_through_kernel(address, b"\xcc")
    with pytest.raises(OSError, match=r"twice \[libtwice.so\].*begins with a breakpoint of another tool"):
        fprobe.attach("libtwice:twice", action=fprobe.Count()).attach()
    assert ctypes.string_at(address, 1) == b"\xcc"
    write_through_kernel(address, original)
    assert library.twice(2) == 5


@isolated(timeout=100)
def test_a_file_that_is_replaced_on_disk_changes_nothing() -> None:
    path = built()
    library = ctypes.CDLL(str(path))
    path.unlink()
    path.write_bytes(b"something else")
    try:
        with fprobe.attach("libtwice:twice", action=fprobe.Count()) as probe:
            assert library.twice(2) == 5
        assert probe.hits == 1
    except OSError as error:
        assert "libtwice" in str(error)
    assert library.twice(2) == 5


@isolated(timeout=100)
def test_patching_while_threads_run_the_code() -> None:
    expected = zlib.compress(DATA)
    with fprobe.attach("libz:deflate*", action=fprobe.Stat()):
        pass
    wrong: list[bytes] = []
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            if zlib.compress(DATA) != expected:
                wrong.append(b"wrong")

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        with fprobe.attach("libz:deflate*", action=fprobe.Stat()) as probe:
            threading.Event().wait(0.02)
            assert probe.counts.missed == 0  # until it is stopped
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


@isolated(timeout=100)
def test_an_image_that_goes_takes_its_locations_with_it() -> None:
    from ftrace.core.tracer import take_out_image, tracer
    from sandbox.images.sources import image_at

    library = ctypes.CDLL(str(built()))
    address = ctypes.cast(library.twice, ctypes.c_void_p).value or 0
    original = ctypes.string_at(address, 8)
    image = image_at(address)
    assert image is not None
    probe = fprobe.attach("libtwice:t*", action=fprobe.Stat()).attach()
    assert library.thrice(5) == 16
    take_out_image(image)()
    assert ctypes.string_at(address, 8) == original
    assert not any(getattr(block, "image", None) is image for block in tracer().table.of_images)
    assert library.thrice(5) == 16
    assert probe.hits == 2
    probe.detach()
    with fprobe.attach("libtwice:t*", action=fprobe.Stat()) as again:
        assert library.thrice(5) == 16
    assert again.hits == 2
