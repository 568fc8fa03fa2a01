"""debugfs' kprobes/ beside the tree (KP-91..93)."""

from __future__ import annotations

import errno
import os

import pytest

from kprobes.events.debugfs import debugfs


def test_the_files_of_kprobes():
    assert debugfs.listdir("kprobes") == ["blacklist", "enabled", "list"]
    assert [debugfs.find(f"kprobes/{name}").mode for name in debugfs.listdir("kprobes")] == [0o400, 0o600, 0o400]
    assert debugfs.read("kprobes/list") == ""
    assert debugfs.read("kprobes/blacklist").startswith("0x")


def test_the_switch():
    debugfs.write("kprobes/enabled", "n")
    assert debugfs.read("kprobes/enabled") == "0\n"
    debugfs.write("kprobes/enabled", "Y")
    assert debugfs.read("kprobes/enabled") == "1\n"
    with pytest.raises(OSError) as caught:
        debugfs.write("kprobes/enabled", "2")
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError), debugfs.open("kprobes/list", os.O_WRONLY) as handle:
        handle.write(b"x")
