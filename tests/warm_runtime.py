"""The runtime exists, and a probe with a Python handler has come and gone: for processes that fork for tests."""

from __future__ import annotations

import faulthandler

from programs import basic

import fprobe

faulthandler.enable()  # as in every interpreter for tests: before the runtime, whose handlers run first then


def _first_registration() -> None:
    module, probe = basic(), fprobe.fprobe(entry_handler=lambda *_: 0)
    fprobe.register_fprobe(probe, "leaf", None)
    fprobe.unregister_fprobe(probe)
    module.unload()


_first_registration()
