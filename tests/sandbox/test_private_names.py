"""Undocumented names of the standard library: one that is missing is named when the first text is mapped."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from isolation import isolated

from sandbox.process import private_names


def test_this_python_has_all():
    assert private_names.missing() == []


def test_a_name_that_is_gone_is_found(monkeypatch):
    monkeypatch.setattr(private_names, "os", SimpleNamespace(environ=SimpleNamespace(_data={}, encodevalue=str)))
    assert private_names.missing() == ["os.environ.encodekey"]


def test_a_name_of_threads_that_is_gone_is_found(monkeypatch):
    monkeypatch.delattr(threading, "_active")
    assert private_names.missing() == ["threading._active"]


@isolated(cold=True)
def test_the_first_program_says_what_is_missing():
    import sandbox

    private_names.missing = lambda: ["os.environ.encodekey", "sys._getframe"]
    with pytest.raises(RuntimeError, match=r"has no os\.environ\.encodekey, sys\._getframe, which fprobe uses"):
        sandbox.load("define i64 @leaf(i64 %x) { ret i64 %x }")
