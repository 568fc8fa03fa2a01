"""The words per thread behind %fs: which of them a destructor gets when a thread ends."""

from __future__ import annotations

import pytest
from isolation import run_source

SOURCE = """
import ctypes, os, threading, time
from sandbox.threads.thread_key import ThreadKey

key, given = ThreadKey(), []
destructor = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(given.append)
key.set_destructor(ctypes.cast(destructor, ctypes.c_void_p).value)

def work():
    {write}

thread = threading.Thread(target=work)
thread.start()
thread.join()
while len(os.listdir('/proc/self/task')) > 1:
    time.sleep(0.001)  # destructors are called after Python has ended with it
print(given)
"""
TASK = "ctypes.CDLL(None).pthread_setspecific(key.number, 16)"
ANOTHER = "ctypes.c_uint64.from_address(key._thread_pointer() + key.another()).value = 16"


@pytest.mark.parametrize(("write", "given"), [(TASK, "[16]"), (ANOTHER, "[]")])
def test_only_the_first_keys_word_is_given_to_the_destructor(write: str, given: str) -> None:
    """Another key's word is no address: the runtime's destructor would read memory there."""
    done = run_source(SOURCE.format(write=write))
    assert (done.returncode, done.stdout.strip()) == (0, given), done.stderr
