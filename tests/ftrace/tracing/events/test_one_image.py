"""Native images are made once, whichever threads need them first."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from isolation import isolated

ROOT = Path(__file__).parents[4]


@isolated
def test_the_image_of_triggers_is_made_once_by_two_threads():
    # A second image would publish its functions under the same names, which is refused.
    import threading

    from ftrace.tracing.events.triggers.trigger import trigger_image

    both, images = threading.Barrier(4), []

    def first_use():
        both.wait(10)
        images.append(trigger_image())

    threads = [threading.Thread(target=first_use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(images) == 4 and len(set(map(id, images))) == 1


@functools.cache
def cached():
    """(path and name, type of the result) of each function with functools.cache."""
    return [
        (f"{path.relative_to(ROOT)}:{node.name}", ast.unparse(node.returns or ast.Constant(None)))
        for package in ("sandbox", "ftrace", "kprobes", "fprobe")
        for path in (ROOT / package).rglob("*.py")
        if "cache" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        if any(ast.unparse(decorator) in ("cache", "functools.cache") for decorator in node.decorator_list)
    ]


def test_no_native_image_is_made_by_a_cache_that_two_threads_can_miss():
    """functools.cache calls the function once for each thread that comes before the first result."""
    assert len(cached()) > 20
    assert [place for place, result in cached() if "NativeImage" in result] == []


HARMLESS = {
    "sandbox/process/fork.py:_watch_renewed": "renewing a lock twice has no other effect",
    "sandbox/process/fork.py:start_by_fork": "sets switches",
    "sandbox/memory/pages.py:_watch_forks": "hooks are added once",
    "kprobes/registration.py:init_kprobes": "each step has an effect once",
}


def test_nothing_is_initialised_by_a_cache_that_two_threads_can_miss():
    """A function without arguments and result, or one that makes the process's only object of a class of ours."""
    classes = re.compile(r"^(None|TraceArray|EventMemory|ForkFollowing|ListRecord|Arena|Tracer|Runtime)$")
    assert sorted(place for place, result in cached() if classes.match(result)) == sorted(HARMLESS)
