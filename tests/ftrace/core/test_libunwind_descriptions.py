"""How libunwind is told of stubs. That programs unwind by it through them: tests/fprobe/run/test_libunwind.py."""

from __future__ import annotations

import ctypes
import threading

import pytest

from ftrace.core.unwind import libunwind


class Library:
    """A stand-in for the library. `busy`: called while a description is being registered."""

    def __init__(self, busy=lambda: None):
        self.registered, self._busy = [], busy

    def _U_dyn_register(self, description):  # noqa: N802  # its name
        self.registered.append(ctypes.addressof(description._obj))
        self._busy()

    def _U_dyn_cancel(self, description):  # noqa: N802  # its name
        self.registered.remove(ctypes.addressof(description._obj))


@pytest.fixture(autouse=True)
def accepted(monkeypatch):
    monkeypatch.setattr(libunwind, "_known", type(libunwind._known)())
    monkeypatch.setattr(libunwind.Description, "_is_found", lambda *_: True)


def described(number=0):
    return libunwind.Description(0x1000 * (number + 1), 16, bytes(32), 0)


def test_the_loader_is_asked_once_for_each_description(monkeypatch):
    """It was asked again for each of those before: of 100 modules with stubs this took four seconds."""
    asked = []
    found = libunwind.loaded()
    monkeypatch.setattr(libunwind, "loaded", lambda: asked.append(1) or found._replace(objects=[]))
    there = [described(number) for number in range(40)]
    assert len(asked) == len(there)


def test_threads_that_meet_register_a_description_once(monkeypatch):
    """The library's list of them went round in circles: it walked there for ever."""
    others = []

    def busy():
        others.append(threading.Thread(target=libunwind.register_all))
        others[-1].start()
        others[-1].join(0.2)

    library = Library(busy)
    monkeypatch.setattr(libunwind, "_loaded", lambda: library if len(others) < 3 else None)
    there = described()
    for other in others:
        other.join()
    assert library.registered == [ctypes.addressof(there._dynamic)]


def test_one_that_is_withdrawn_while_it_is_registered_does_not_stay(monkeypatch):
    """Its memory was freed, and the library read it."""
    others = []

    def busy():
        (there,) = libunwind._known
        others.append(threading.Thread(target=there.withdraw))
        others[-1].start()
        others[-1].join(0.2)

    library = Library(busy)
    monkeypatch.setattr(libunwind, "_loaded", lambda: library)
    described()
    others[0].join()
    assert library.registered == []
