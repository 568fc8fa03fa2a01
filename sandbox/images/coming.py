"""Images that come: who follows them is called once their code can be patched, and before anybody has its address.

Followers run in the thread that has made the code, with the locks of its compiler (Numba's) but not with LLVM's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("fprobe")

Follower = Callable[[], None]
_followers: list[Follower] = []


def add_follower(follower: Follower) -> None:
    """Call `follower()` when `images_have_come` is called. One that is called already is not called twice."""
    if follower not in _followers:
        _followers.append(follower)


def unfollow(follower: Follower) -> None:
    """Call it no more. Does nothing if it is not called."""
    if follower in _followers:
        _followers.remove(follower)


def images_have_come() -> None:
    """Call the followers. What one raises is logged: the program that makes the code is not to fail for it."""
    for follower in list(_followers):
        try:
            follower()
        except Exception as error:
            log.warning(
                "code that has been compiled is not probed: %s", error, exc_info=log.isEnabledFor(logging.DEBUG)
            )
