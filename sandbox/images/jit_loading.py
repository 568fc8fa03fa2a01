"""Notification of new JIT code: after those calls of llvmlite, and events of Numba, that may have made some.

The GDB JIT interface tells of code while it is not finished, with LLVM's locks held; these calls return when it is.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

from sandbox.process import hooks
from sandbox.process.once import once
from sandbox.symbols import gdbjit

_MAKE = ("finalize_object", "lookup", "link")
_MAY_MAKE = ("get_function_address", "get_global_value_address")
"""Methods that finish code if there is any that is not."""
_COMPILED = "numba:compile"

_newest = [0]
"""The newest entry when the list was last looked at; 0 if an entry may have gone since, whose address may be used again."""

log = logging.getLogger("fprobe")
Follower = Callable[[], None]
_followers: list[Follower] = []


def follow(follower: Follower) -> bool:
    """Call `follower()` from now on whenever JIT compilers may have made code. Returns False if it is called already."""
    is_new = add_follower(follower)
    _watch()
    return is_new


@once
def _watch() -> None:
    """Notice code that comes from now on."""
    from llvmlite import binding

    _newest[0] = gdbjit.newest()
    for kind in (binding.ExecutionEngine, binding.LLJIT, binding.ResourceTracker, binding.JITLibraryBuilder):
        _wrap(kind)
    engine = getattr(sys.modules.get("numba.core.codegen"), "JitEngine", None)
    if engine is not None:  # otherwise it will take the methods as they are now
        _wrap(engine)
    if "numba.core.event" in sys.modules:
        _listen()


def _wrap(kind: Any) -> None:
    """Notice code after every call of those methods that `kind` has."""
    for name in (*_MAKE, *_MAY_MAKE):
        method = vars(kind).get(name)
        if method is not None:
            setattr(kind, name, _noticing(method, name in _MAKE))
    if hasattr(kind, "close"):
        kind.close = _forgetting(kind.close)


def _noticing(method: Callable[..., Any], makes: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    def noticing(*arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        if not gdbjit.is_making_own() and (makes or gdbjit.newest() != _newest[0]):
            _notice()
        return result

    return noticing


def _forgetting(close: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(close)
    def forgetting(*arguments: Any) -> Any:
        if gdbjit.OWN in vars(arguments[0]):
            return close(*arguments)
        _newest[0] = 0
        with contextlib.ExitStack() as stack:
            for around in hooks.around_closing:
                stack.enter_context(around())
            return close(*arguments)

    return forgetting


def _notice() -> None:
    _newest[0] = gdbjit.newest()
    if "numba.core.event" in sys.modules:
        _listen()
    notify_followers()


@once
def _listen() -> None:
    """Numba tells when a specialisation has been entered in its dispatcher, which says what its code is part of."""
    event: Any = sys.modules["numba.core.event"]

    class Compiled(event.Listener):  # type: ignore[misc]  # of a module without types
        def on_start(self, _event: Any) -> None: ...

        def on_end(self, _event: Any) -> None:
            from sandbox.images.numba import images

            if images.retry_unknown_carriers():
                notify_followers()

    event.register(_COMPILED, Compiled())


def add_follower(follower: Follower) -> bool:
    """Call `follower()` when `notify_followers` is called. Returns False if it is called already; it is not called twice."""
    is_new = follower not in _followers
    if is_new:
        _followers.append(follower)
    return is_new


def unfollow(follower: Follower) -> None:
    """Call it no more. Does nothing if it is not called."""
    if follower in _followers:
        _followers.remove(follower)


def notify_followers() -> None:
    """Call the followers. What one raises is logged: the program that makes the code is not to fail for it."""
    for follower in list(_followers):
        try:
            follower()
        except Exception as error:
            log.warning(
                "code that has been compiled is not probed: %s", error, exc_info=log.isEnabledFor(logging.DEBUG)
            )
