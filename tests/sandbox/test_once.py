"""Values that are computed once: for the process, or for each object."""

from __future__ import annotations

import os
import threading

import pytest
from isolation import isolated

from sandbox.process.once import cached_property, once, once_for_each


def test_whoever_comes_meanwhile_gets_the_same():
    entered, go_on, made = threading.Event(), threading.Event(), []

    @once
    def get() -> object:
        entered.set()
        go_on.wait(30)
        return object()

    threads = [threading.Thread(target=lambda: made.append(get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert entered.wait(30) and made == []
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
            go_on.wait(30)
        return os.getpid()

    thread = threading.Thread(target=get)
    thread.start()
    assert entered.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if get() == os.getpid() else 1)
    _, status = os.waitpid(child, 0)
    go_on.set()
    thread.join()
    assert status == 0 and get() == os.getpid()


def test_threads_that_come_first_get_one_object_for_each_argument():
    entered, go_on, made = threading.Event(), threading.Event(), []

    @once_for_each
    def get(key: str) -> object:
        entered.set()
        go_on.wait(30)
        return [key]

    threads = [threading.Thread(target=lambda: made.append(get("a"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert entered.wait(30)
    go_on.set()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in made}) == 1 and get("b") == ["b"] and get("b") is get("b")


class Asked:
    """An object whose property may take long to compute."""

    def __init__(self, slow: bool = False) -> None:
        self.slow, self.times = slow, 0
        self.entered, self.go_on = threading.Event(), threading.Event()

    @cached_property
    def value(self) -> object:
        """Made anew at each computation."""
        self.times += 1
        self.entered.set()
        if self.slow:
            self.go_on.wait(30)
        return object()


def test_it_is_computed_once_for_each_object():
    first, second = Asked(), Asked()
    assert first.value is first.value is not second.value
    assert first.times == second.times == 1
    assert Asked.value.__doc__ == "Made anew at each computation."


def test_what_cannot_be_computed_is_tried_again():
    class Failing:
        answers = iter([OSError("not yet"), 7])

        @cached_property
        def value(self) -> int:
            answer = next(self.answers)
            if isinstance(answer, OSError):
                raise answer
            return answer

    asked = Failing()
    with pytest.raises(OSError, match="not yet"):
        asked.value  # noqa: B018
    assert (asked.value, asked.value) == (7, 7)


def test_threads_that_ask_different_objects_do_not_wait_for_each_other():
    slow, quick = Asked(slow=True), Asked()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert slow.entered.wait(30)
    other = threading.Thread(target=lambda: quick.value, daemon=True)
    other.start()
    other.join(30)
    assert not other.is_alive()
    slow.go_on.set()
    thread.join()


def test_threads_that_ask_at_the_same_time_are_given_the_same():
    asked, given = Asked(slow=True), []
    threads = [threading.Thread(target=lambda: given.append(asked.value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert asked.entered.wait(30)
    asked.go_on.set()
    for thread in threads:
        thread.join()
    assert given == [asked.value] * 4


@isolated
def test_a_child_that_is_forked_while_another_thread_computes_does_not_wait_for_it():
    """HAZARDS, fork: nobody in the child will ever release what another thread holds."""
    slow = Asked(slow=True)
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert slow.entered.wait(30)
    child = os.fork()
    if child == 0:
        slow.slow = False
        os._exit(0 if slow.value is slow.value and Asked().value else 1)
    _, status = os.waitpid(child, 0)
    slow.go_on.set()
    thread.join()
    assert status == 0
