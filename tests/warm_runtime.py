"""The runtime exists, and probes with Python handlers have come and gone: for processes that fork for tests."""

from __future__ import annotations

import faulthandler

faulthandler.enable()  # as in every interpreter for tests: before the runtime, whose handlers run first then

from programs import basic  # noqa: E402

import fprobe.tracefs  # noqa: E402
import kprobes  # noqa: E402


def _first_registrations() -> None:
    module = basic()
    probe = fprobe.fprobe(entry_handler=lambda *_: 0)
    fprobe.register_fprobe(probe, "leaf", None)
    fprobe.unregister_fprobe(probe)
    kprobe = kprobes.kprobe(symbol_name="leaf", pre_handler=lambda *_: 0)
    kprobes.register_kprobe(kprobe)
    kprobes.unregister_kprobe(kprobe)
    module.unload()


_first_registrations()
