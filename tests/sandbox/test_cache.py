"""The cache of compiled objects."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sandbox.compile import cache


@pytest.fixture
def store(tmp_path):
    return cache.Cache(tmp_path / "deep" / "objects")


def test_what_was_put_is_there(store):
    store.put("k", b"data\0" * 1000)
    assert store.get("k") == b"data\0" * 1000
    assert store.get("other") is None


def test_the_directory_is_for_its_owner_alone(store):
    store.put("k", b"data")
    assert store.directory.stat().st_mode & 0o777 == 0o700
    assert [entry.stat().st_mode & 0o077 for entry in store.directory.iterdir()] == [0]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755, 0o701])
def test_a_directory_that_others_may_enter_is_not_used(store, mode):
    store.put("k", b"data")
    store.directory.chmod(mode)
    assert store.get("k") is None
    store.put("l", b"data")
    assert len(list(store.directory.iterdir())) == 1


def test_a_link_to_a_directory_is_not_used(tmp_path):
    cache.Cache(tmp_path / "real").put("k", b"data")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert cache.Cache(tmp_path / "link").get("k") is None


def test_a_directory_of_somebody_else_is_not_used(store, monkeypatch):
    store.put("k", b"data")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert store.get("k") is None


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied", "renamed"])
def test_what_is_not_what_was_stored_counts_as_absent(store, damage):
    store.put("k", b"data" * 100)
    entry = next(store.directory.iterdir())
    stored = entry.read_bytes()
    if damage == "cut":
        entry.write_bytes(stored[:-1])
    elif damage == "changed":
        entry.write_bytes(stored[:-1] + bytes([stored[-1] ^ 1]))
    elif damage == "emptied":
        entry.write_bytes(b"")
    else:
        entry.rename(entry.with_name(entry.name.replace("k", "l")))
        assert store.get("l") is None
    assert store.get("k") is None
    store.put("k", b"new")
    assert store.get("k") == b"new"


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    broken = cache.Cache(tmp_path / "file" / "objects")
    broken.put("k", b"data")
    assert broken.get("k") is None
    nothing = cache.Cache(None)
    nothing.put("k", b"data")
    assert nothing.get("k") is None


def test_the_least_recently_used_make_room(tmp_path):
    store = cache.Cache(tmp_path / "objects", limit=10_000)
    for i in range(5):
        store.put(f"k{i}", bytes(3000))
        os.utime(store.directory / f"k{i}.bin", (1000 + i, 1000 + i))
    store.put("last", bytes(3000))
    assert [name for name in ("k0", "k1", "k2", "k3", "k4", "last") if store.get(name)] == ["k3", "k4", "last"]


def test_writers_do_not_disturb_readers(store):
    store.put("k", bytes(50_000))
    wrong, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            if store.get("k") not in (bytes(50_000), b"\xff" * 50_000):
                wrong.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(100):
        store.put("k", bytes([255 * (i % 2)]) * 50_000)
    stop.set()
    reader.join()
    assert not wrong


def test_keys_tell_parts_apart():
    keys = [
        cache.key("ab", "c"),
        cache.key("a", "bc"),
        cache.key("abc"),
        cache.key("abc", ""),
        cache.key(b"abc", b"", ""),
    ]
    assert len(set(keys)) == len(keys)
    assert cache.key("a", b"b") == cache.key("a", "b")


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("FPROBE_CACHE_DIR", str(tmp_path / "chosen"))
    assert cache.default_cache().directory == tmp_path / "chosen"
    monkeypatch.delenv("FPROBE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_cache().directory == tmp_path / "fprobe"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.default_cache().directory == Path.home() / ".cache" / "fprobe"
    monkeypatch.setenv("FPROBE_NO_CACHE", "1")
    assert cache.default_cache().directory is None
