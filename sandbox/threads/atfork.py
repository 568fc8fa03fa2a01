"""The handlers that libc calls around every fork: no change of text is in progress while the process is copied.

A change made from Python may need the GIL to finish: a forking thread that holds it releases it while it waits.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sandbox.native import *
from sandbox.process import fork
from sandbox.process.shared_text import changes
from sandbox.threads.system_calls import nap

if TYPE_CHECKING:
    from sandbox.native.native_image import NativeImage

PATIENCE = 200_000
"""Naps, some ten seconds in all: a limit that turns a deadlock into a delay."""


@struct
class ForkWords(Structure):
    """sandbox.process.shared_text.ForkWords."""

    forks: u64
    in_progress: u64
    writer: u64


words = global_var(u64, 0, name="fork_words")
"""The address of `changes.words`."""

pthread_self = extern("pthread_self", fn[u64])
gil_check = extern("PyGILState_Check", fn[i32])
this_thread = extern("PyGILState_GetThisThreadState", fn[ptr[u8]])
save_thread = extern("PyEval_SaveThread", fn[ptr[u8]])
restore_thread = extern("PyEval_RestoreThread", fn[void, ptr[u8]])


@native(inline=True)
def the_words() -> ptr[ForkWords]:
    return cast(ptr[ForkWords], words)


@native
def wait_for_writer(own: ptr[ForkWords], me: u64) -> void:
    for _ in range(PATIENCE):
        writer = load(addressof(own.writer), "seq_cst")
        if writer == 0 or writer == me:
            return
        nap()


@native(export=True)
def fork_prepare() -> void:
    """Before a fork: let no change begin, and wait for the end of another thread's change."""
    own = the_words()
    me = pthread_self()
    atomic_add(addressof(own.in_progress), 1)
    writer = load(addressof(own.writer), "seq_cst")
    if writer == 0 or writer == me:
        return
    state: ptr[u8] = null
    if this_thread() != null and gil_check() != 0:
        state = save_thread()
    wait_for_writer(own, me)
    if state != null:
        restore_thread(state)


@native(export=True)
def fork_in_parent() -> void:
    atomic_sub(addressof(the_words().in_progress), 1)


@native(export=True)
def fork_in_child() -> void:
    """No other thread exists here that could be forking or writing."""
    own = the_words()
    own.in_progress = 0
    if own.writer != pthread_self():
        own.writer = 0


@native(export=True)
def begin_change(thread: u64) -> u32:
    """Make `thread` the writer unless a fork is in progress; returns whether it is."""
    own = the_words()
    atomic_exchange(addressof(own.writer), thread)
    if load(addressof(own.in_progress), "seq_cst") == 0:
        return 1
    store(addressof(own.writer), 0, "release")
    return 0


@native(export=True)
def begin_change_after_forks(thread: u64) -> void:
    """The same once no fork is in progress. Called without the GIL, which a forking thread may wait for."""
    for _ in range(PATIENCE):
        if begin_change(thread) != 0:
            return
        nap()
    store(addressof(the_words().writer), thread, "release")


FUNCTIONS = (fork_prepare, fork_in_parent, fork_in_child, begin_change, begin_change_after_forks)


def install(image: NativeImage, address_of_words: int) -> None:
    """Make forks and changes of text wait for each other from now on, by the functions of `image`, which must stay."""
    image.variable("fork_words").value = address_of_words
    fork.at_fork(*map(image.address, ("fork_prepare", "fork_in_parent", "fork_in_child")))
    changes.begin = partial(image.call, "begin_change")
    changes.begin_after_forks = partial(image.call_and_wait, "begin_change_after_forks")
