"""What there is one of in a process."""

from __future__ import annotations

import os
import threading

from isolation import isolated

from sandbox.process.once import once


def test_whoever_comes_meanwhile_gets_the_same():
    entered, go_on, made = threading.Event(), threading.Event(), []

    @once
    def get() -> object:
        entered.set()
        go_on.wait(10)
        return object()

    threads = [threading.Thread(target=lambda: made.append(get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert entered.wait(10) and made == []
    go_on.set()
    for thread in threads:
        thread.join()
    assert made == [get()] * 4


def test_what_cannot_be_made_is_tried_again():
    results = iter([OSError("not yet"), 7])

    @once
    def get() -> int:
        result = next(results)
        if isinstance(result, OSError):
            raise result
        return result

    try:
        get()
    except OSError as error:
        assert str(error) == "not yet"
    assert (get(), get()) == (7, 7)


@isolated
def test_a_child_that_is_forked_meanwhile_makes_its_own():
    entered, go_on = threading.Event(), threading.Event()

    @once
    def get() -> int:
        if not entered.is_set():
            entered.set()
            go_on.wait(10)
        return os.getpid()

    thread = threading.Thread(target=get)
    thread.start()
    assert entered.wait(10)
    child = os.fork()
    if child == 0:
        os._exit(0 if get() == os.getpid() else 1)
    _, status = os.waitpid(child, 0)
    go_on.set()
    thread.join()
    assert status == 0 and get() == os.getpid()
