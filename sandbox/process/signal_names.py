"""Names of signals."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """`SIGTERM`, `SIGRTMIN+3`, or the number of one that the C library keeps for itself."""
    try:
        return signal.Signals(number).name
    except ValueError:
        above = number - signal.SIGRTMIN
        return f"SIGRTMIN+{above}" if 0 < above < signal.SIGRTMAX - signal.SIGRTMIN else f"signal {number}"
