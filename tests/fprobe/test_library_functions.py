"""fprobes on functions of shared libraries, which have no stubs (zlib is in every Python)."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from isolation import isolated

import fprobe
from ftrace.core.entries import locate
from ftrace.core.filters.image_functions import find_functions
from ftrace.core.sites.detoured import DetouredBlock
from ftrace.core.tracer import tracer
from sandbox.native import i32, ptr, u64
from sandbox.symbols.libraries import libraries

DATA = b"some text that is worth compressing " * 500

libz = ctypes.CDLL("libz.so.1")
lengths = fprobe.Array(u64, 3)


def text_of_libz() -> bytes:
    block = next(b for b in tracer().table.of_images if b.name == "libz.so.1")
    return b"".join(ctypes.string_at(address, 8) for address in block.addresses)


def test_entry_and_exit_in_python() -> None:
    seen: list[tuple[str, int]] = []

    def entered(fp: Any, ip: int, ret: int, regs: Any, data: Any) -> int:
        seen.append(("in", regs.dx))
        return 0

    def left(fp: Any, ip: int, ret: int, regs: Any, data: Any) -> None:
        seen.append(("out", regs.ax))

    expected = zlib.crc32(DATA)
    with fprobe.attach("libz:crc32_z", entry=entered, exit=left) as probe:
        assert zlib.crc32(DATA) == expected
    assert seen == [("in", len(DATA)), ("out", expected)]
    assert (probe.hits, probe.counts.missed) == (1, 0)
    assert zlib.crc32(DATA) == expected
    assert len(seen) == 2


def test_addresses_in_one_library_are_looked_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of its image used to be listed for each address: seconds for some thousand of them."""
    chosen = find_functions("libz:*")
    image_at, asked = locate.image_at, list[int]()
    monkeypatch.setattr(locate, "image_at", lambda address: asked.append(address) or image_at(address))
    assert [*locate._found_at(found.function.address for found in chosen)] == chosen
    assert len(chosen) > 100
    assert len(asked) == 1


def test_every_function_at_both_ends() -> None:
    expected = zlib.compress(DATA)
    with fprobe.attach("libz:*", action=fprobe.Count()):
        pass
    before = text_of_libz()
    with fprobe.attach("libz:*", action=fprobe.Stat()) as probe:
        assert text_of_libz() != before
        assert zlib.compress(DATA) == expected
        assert zlib.decompress(expected) == DATA
        assert len(probe.targets) > 100
    assert text_of_libz() == before
    assert probe.hits > 100
    assert probe.counts.missed == 0


@fprobe.native
def starts(fp, ip, ret_ip, regs, data: ptr[u64]) -> i32:
    data[0] = regs.dx
    lengths[0] += regs.dx
    return 0


@fprobe.native
def ends(fp, ip, ret_ip, regs, data: ptr[u64]):
    lengths[1] += data[0]
    lengths[2] = regs.ax


def test_entry_data_and_native_handlers() -> None:
    with fprobe.attach("libz:crc32_z", entry=starts, exit=ends) as probe:
        for _ in range(10):
            result = zlib.crc32(DATA)
    assert list(lengths) == [10 * len(DATA), 10 * len(DATA), result]
    assert (probe.hits, probe.counts.missed) == (10, 0)


def test_counts_are_exact_over_threads() -> None:
    def work() -> None:
        for _ in range(2000):
            zlib.crc32(b"abc")

    with fprobe.attach("libz:crc32_z", action=fprobe.Stat()) as probe:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (probe.hits, probe.counts.missed) == (8000, 0)


def test_several_probes_run_in_order() -> None:
    order: list[str] = []

    def note(what: str) -> Any:
        return lambda *_: order.append(what) or 0

    with (
        fprobe.attach("libz:adler32_z", entry=note("in 1"), exit=note("out 1")),
        fprobe.attach("libz:adler32*", entry=note("in 2"), exit=note("out 2")),
    ):
        zlib.adler32(b"x" * 10)
    whole = [step for step in order if step.endswith("1")]
    assert whole == ["in 1", "out 1"]
    assert (
        order.index("in 2") < order.index("in 1") < order.index("out 1") < len(order) - 1 - order[::-1].index("out 2")
    )


def test_a_pattern_that_matches_nothing_names_what_comes_near() -> None:
    with pytest.raises(OSError, match="did you mean libz:deflate") as caught:
        fprobe.attach("libz:deflat").attach()
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError, match="did you mean libz:deflate"):
        fprobe.attach("deflate").attach()
    with pytest.raises(OSError, match="did you mean libz:deflate") as caught:
        fprobe.attach(["deflate"]).attach()
    assert caught.value.errno == errno.ENOENT


def test_a_star_alone_means_no_library() -> None:
    with fprobe.attach("libz:crc32", action=fprobe.Count()):
        assert isinstance(tracer().table.of_images[0], DetouredBlock)
        assert not any(isinstance(block, DetouredBlock) for block in tracer().table.everything())


@isolated(timeout=60)
def test_a_function_that_the_loader_has_taken_from_elsewhere_is_skipped():
    """Hazard: gettimeofday and time of libc are chosen from the kernel's vDSO, whose text nobody can write."""
    if not any("vdso" in library.name for library in libraries()):
        pytest.skip("no vDSO")
    with fprobe.attach("libc:*timeofday", action=fprobe.Count()) as probe:
        assert any("settimeofday" in name for name in probe.targets)
        skipped = {each.name.split()[0].strip("_"): each.reason for each in probe.skipped}
    assert "vDSO" in skipped["gettimeofday"]
    with pytest.raises(OSError, match="vDSO"):
        fprobe.attach("libc:gettimeofday", action=fprobe.Count()).attach()


@pytest.mark.skipif(not any(library.name.startswith("linux-vdso") for library in libraries()), reason="no vDSO")
def test_code_without_a_file_is_skipped_and_the_rest_is_probed() -> None:
    """The vDSO: a pattern such as `*:*` failed because of it."""
    resolution = locate.locations_of([*find_functions("libz:crc32"), *find_functions("linux-vdso:*")])
    assert [location.name for location in resolution.locations.each()] == ["crc32"]
    assert resolution.skipped
    assert all("which has no backing file" in skipped.reason for skipped in resolution.skipped)


@pytest.fixture
def relative(tmp_path: Path) -> str:
    """The directory of a library `libplain.so` with an indirect function, `chosen`, that is nothing."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    (tmp_path / "plain.c").write_text(
        "int plain(void) { return 3; }\n"
        "static void *none(void) { return 0; }\n"
        'int chosen(void) __attribute__((ifunc("none")));\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "plain.c", "-o", "libplain.so"], cwd=tmp_path, check=True)
    return str(tmp_path)


@isolated(timeout=60)
def test_a_library_that_was_opened_by_a_relative_path(relative: str) -> None:
    """It is found after the program has changed its directory, and stays when it is closed while it is probed."""
    os.chdir(relative)
    opened = ctypes.CDLL("./libplain.so")
    os.chdir("/")
    with fprobe.attach("libplain:*", action=fprobe.Count()) as probe:
        before = probe.hits
        assert opened.plain() == 3
        close = ctypes.CDLL(None).dlclose
        close.argtypes = (ctypes.c_void_p,)
        assert close(opened._handle) == 0
        assert opened.plain() == 3
        assert probe.hits == before + 2
    assert [each.reason for each in probe.skipped] == ["the dynamic loader has chosen nothing for it"]


ASSEMBLY = """
        .text
        .globl takes, plain
        .type takes, @function
        .type plain, @function
        .type plain.cold, @function
takes:  .cfi_startproc
        call 1f
1:      pop %rax
        ret
        .cfi_endproc
        .size takes, . - takes
plain:  .cfi_startproc
        mov %edi, %eax
        ret
        .cfi_endproc
        .size plain, . - plain
plain.cold:
        .cfi_startproc
        nop
        ret
        .cfi_endproc
        .size plain.cold, . - plain.cold
        .section .note.GNU-stack, "", @progbits
"""


@pytest.fixture
def refused(tmp_path: Path) -> str:
    """A library whose function `takes` cannot have a return probe, and whose `plain` has a cold part."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    (tmp_path / "refused.S").write_text(ASSEMBLY)
    subprocess.run(["cc", "-shared", "refused.S", "-o", "librefused.so"], cwd=tmp_path, check=True)
    return str(tmp_path / "librefused.so")


@isolated(timeout=60)
def test_each_skipped_function_is_told_once(refused: str) -> None:
    """Hazard: by whatever the functions are named; and none is left out without a word."""
    opened = ctypes.CDLL(refused)
    for target in ("librefused:*", ["librefused:takes", "librefused:plain"]):
        for _ in range(2):
            with fprobe.attach(target, action=fprobe.Stat()) as probe:
                assert opened.plain(3) == 3
                assert [each.name for each in probe.skipped] == ["takes [librefused.so]"]
            assert probe.hits == 1
    with fprobe.attach(["libc:gettimeofday", "librefused:plain"], action=fprobe.Count()) as probe:
        reasons = [each.reason for each in probe.skipped]
    if any("vdso" in library.name for library in libraries()):
        assert len(reasons) == 1 and "vDSO" in reasons[0]


@isolated(timeout=60)
def test_a_glob_means_no_cold_parts(refused: str) -> None:
    ctypes.CDLL(refused)
    assert [found.function.name for found in find_functions("librefused:p*")] == ["plain"]
    assert [found.function.name for found in find_functions("librefused:p*.cold")] == ["plain.cold"]
    assert [found.function.name for found in find_functions("librefused:plain.cold")] == ["plain.cold"]
    with pytest.raises(OSError, match="a part of a function"):
        fprobe.attach("librefused:plain.cold", action=fprobe.Stat()).attach()
