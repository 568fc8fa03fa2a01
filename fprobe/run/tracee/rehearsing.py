"""A rehearsal: does in a process of its own what an attachment would do in the target, so that everything is compiled by then."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Sequence
from typing import Any

from fprobe.run import session
from fprobe.run.tracee.arming import Arming
from sandbox.compile import cache
from sandbox.process.parent import end_with
from sandbox.symbols.perfmap import perf_map

_PATTERN = ("libc:getpid", "library-of-no-program:*")
"""What is probed instead of the functions that are meant: the code is the same for all, but for those that have events, too.

The second waits for its library, which takes code of its own.
"""


def rehearse(options: dict[str, Any], libraries: Sequence[str], parent: int) -> list[str]:
    """Attach to this process and detach. Returns the keys of the objects that were needed, in their order.

    `options`: the fields of `Settings`. `libraries`: files that definitions of events refer to.
    `parent`: the process that waits for them; this one ends with it.
    """
    end_with(parent)
    used = cache.used = []
    perf_map.is_wanted = False
    for library in libraries:
        with contextlib.suppress(OSError):
            ctypes.CDLL(library)
    settings = session.Settings(**options)
    meant = {name: getattr(settings, name) for name in ("patterns", "stacks", "handled")}
    settings = settings._replace(
        **{name: texts and _PATTERN + texts * bool(settings.events) for name, texts in meant.items()}
    )
    _attach_and_detach(settings)
    if settings.events:  # they take other code where they have been before, and then an fprobe
        probed = tuple(dict.fromkeys(re.split(r"[+%]", text.split()[1])[0] for text in settings.events))
        _attach_and_detach(session.Settings(probed))
        _attach_and_detach(settings)
    cache.used = None
    return list(dict.fromkeys(used))


def _attach_and_detach(settings: session.Settings) -> None:
    counts, journal = session.create(settings)
    arming = Arming(session.address_of(counts, journal), settings)
    arming.begin()
    os.getppid()
    arming.end()
    os.close(counts)
    os.close(journal)
