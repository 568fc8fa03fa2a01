"""Any code in the process by name or address, and the memory it lies in."""

import ctypes
import errno
import re
import threading
import zlib
from pathlib import Path

import pytest
from elftools.dwarf.callframe import FDE
from elftools.elf.elffile import ELFFile
from isolation import isolated
from sampled import in_stress

from sandbox.images import process_text
from sandbox.images.near_misses import no_symbol
from sandbox.symbols.libraries import libraries


def library(stem):
    return next(one for one in libraries() if one.name.startswith(stem))


def test_a_function_of_a_library_by_its_short_and_its_full_name():
    short, full = process_text.symbol_named("libz:crc32"), process_text.symbol_named("libz.so.1:crc32")
    assert short == full and short.size > 0
    assert process_text.symbol_at(short.address + 1).address == short.address


def test_an_indirect_function_is_what_the_loader_chose():
    chosen = process_text.symbol_named("libc:memcpy")
    loaded = ctypes.cast(ctypes.CDLL(None).memcpy, ctypes.c_void_p).value
    assert (chosen.address, chosen.indirect) == (loaded, False) and chosen.size > 16
    # libc has one for each kind of CPU, with a name where libc's debug file is installed: __memcpy_avx512_unaligned_erms.
    assert re.fullmatch(r"(__)?mem(cpy|move)(_\w+)?", process_text.symbol_at(loaded + 5).name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_fuhzqx", "library:no_such_fuhzqx"),
        in_stress(("deflate", "no symbol 'deflate' in a loaded module; did you mean libz:deflate?")),
        ("libnone:f", "no module, library or other image 'libnone' is loaded"),
        in_stress(("libnone:deflate", "'libnone' is loaded; did you mean libz:deflate?")),
        in_stress((":deflate", "'' is loaded; did you mean libz:deflate?")),
        ("libz:no_such_function", r"no symbol 'no_such_function' in \[libz.so.1\]"),
        in_stress(("libz:", r"no symbol '' in \[libz.so.1\]")),
        in_stress(("libz:strtoll_", r"in \[libz.so.1\]; did you mean libc:strtol")),
        ("numba:no.such", r"no function 'no.such' in \[numba\]: nothing has been compiled yet"),
    ],
)
def test_a_name_that_is_not_there_is_named(name, said):
    with pytest.raises(LookupError, match=name):
        process_text.symbol_named(name)
    assert re.search(said, no_symbol(name))


def test_function_bounds_are_those_of_the_unwind_tables():
    """Against pyelftools, which reads .eh_frame from the file."""
    found = library("libz")
    with Path(found.path).open("rb") as file:
        entries = ELFFile(file).get_dwarf_info().EH_CFI_entries()
        ranges = [(e["initial_location"], e["address_range"]) for e in entries if isinstance(e, FDE)]
    assert len(ranges) > 100
    for start, size in ranges:
        bounds = (found.base + start, found.base + start + size)
        assert found.function_bounds(bounds[0]) == found.function_bounds(bounds[1] - 1) == bounds


def test_an_address_in_no_code_is_refused_by_name():
    where = ctypes.addressof(ctypes.create_string_buffer(8))
    assert process_text.symbol_at(where) is None
    with pytest.raises(OSError, match=f"{where:#x} is not in the text") as caught:
        process_text.text_at(where)
    assert caught.value.errno == errno.EINVAL


@isolated
def test_a_librarys_text_is_put_on_a_memfd_while_threads_run_it():
    data = bytes(range(256)) * 64
    expected = zlib.crc32(data), zlib.compress(data)
    wrong, rounds, stop = [], [0], threading.Event()

    def work():
        while not stop.is_set():
            rounds[0] += 1
            if (zlib.crc32(data), zlib.compress(data)) != expected:
                wrong.append(rounds[0])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    while rounds[0] < 20:
        pass
    symbol = process_text.symbol_named("libz:deflate")
    text = process_text.text_at(symbol.address)
    before = text.read(symbol.address, 64)
    with text.writable() as delta:
        assert ctypes.string_at(symbol.address + delta, 64) == before
    while rounds[0] < 60:
        pass
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong and process_text.text_at(symbol.address + 1) is text
