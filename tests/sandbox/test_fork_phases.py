"""The phases of a fork: their order, and that a callback that fails keeps none of the others from running."""

from __future__ import annotations

import threading
import weakref

import pytest
from isolation import run_source

from sandbox.process import fork

PROGRAM = """
import os, threading
from sandbox.memory import mappings
from sandbox.process import fork
from sandbox.process.fork import Phase

steps = []

class Closely:
    def before(self): steps.append("before")
    def after_in_parent(self): steps.append("parent")
    def after_in_child(self): steps.append("child"); raise ValueError("child fails")

class Lock:
    def acquire(self): steps.append("hold")
    def release(self): steps.append("give")

def failing():
    steps.append("tasks")
    raise ValueError("tasks fail")

fork.in_child(Phase.THREADS, lambda: steps.append("threads"))
fork.in_child(Phase.BUFFERS, lambda: steps.append("buffers"))
fork.in_child(Phase.TASKS, failing)
fork.in_child(Phase.PROBES, lambda: steps.append("probes"))
fork.in_child(Phase.KERNEL, lambda: steps.append("kernel"))
fork.innermost(Closely())
fork.hold(Lock(), level=0)
renewed = fork.renew(threading.Lock())
mappings.fork_words()
threading.Thread(target=renewed.acquire).start()
pid = os.fork()
if pid == 0:
    print(*steps, "renewed" if renewed.acquire(blocking=False) else "taken", flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(*steps)
"""


def test_callbacks_run_in_the_order_of_their_phases_whichever_fail():
    done = run_source(PROGRAM)
    child, parent = done.stdout.splitlines()
    assert child == "hold before child kernel give tasks probes buffers threads renewed"
    assert parent == "hold before parent give"
    assert "tasks fail" in done.stderr
    assert "child fails" in done.stderr


def test_the_table_lists_the_phases_in_their_order():
    in_child = (fork.__doc__ or "").partition("in the child            ")[2]
    places = [in_child.index(phase.name) for phase in fork.Phase]
    assert places == sorted(places)


def test_locks_of_objects_that_are_gone_are_not_kept():
    lock = fork.renew(threading.Lock())
    gone = weakref.ref(lock)
    del lock
    assert gone() is None


MEANWHILE = """
import os, threading
from sandbox.memory import mappings
from sandbox.process import fork

class Registers:
    def before(self): fork.hold(threading.RLock(), level=1)
    def after_in_parent(self): pass
    def after_in_child(self): pass

fork.hold(threading.RLock(), level=0)
{when}
fork.innermost(Registers())
pid = os.fork()
if pid == 0:
    os._exit(0)
print(os.waitpid(pid, 0)[1])
"""


@pytest.mark.parametrize(
    "when",
    ["mappings.fork_words()", "os.register_at_fork(before=mappings.fork_words)"],
    ids=["a lock", "all"],
)
def test_what_is_registered_while_a_process_forks_concerns_the_next_fork(when):
    done = run_source(MEANWHILE.format(when=when))
    assert (done.stdout, done.stderr) == ("0\n", "")
