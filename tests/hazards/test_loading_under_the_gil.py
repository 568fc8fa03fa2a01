"""The loader's locks and the GIL: listing the loaded libraries while other threads load and start."""

from __future__ import annotations

import pytest
from isolation import isolated


@pytest.mark.stress
@isolated
def test_libraries_are_listed_while_threads_start_and_libraries_are_loaded():
    """A thread that has the GIL waits for the loader in pthread_create; the one that lists must not wait for the GIL there."""
    import _ctypes
    import ctypes
    import threading
    import time

    from sandbox.symbols import libraries

    process = ctypes.CDLL(None)
    process.dlopen.restype, process.dlclose.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    end = time.monotonic() + 2

    def load():
        while time.monotonic() < end:
            handle = process.dlopen(_ctypes.__file__.encode(), 2) or process.dlopen(b"libm.so.6", 2)
            process.dlclose(handle)
            for name in (b"libuuid.so.1", b"libexpat.so.1", b"libutil.so.1", b"libanl.so.1"):
                if handle := process.dlopen(name, 2):
                    process.dlclose(handle)

    def start():
        while time.monotonic() < end:
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()

    def list_all():
        while time.monotonic() < end:
            libraries._known.clear()
            found = {library.name for library in libraries.libraries()}
            assert "libc.so.6" in found

    threads = [threading.Thread(target=each, daemon=True) for each in (load, start, list_all)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
