"""The table of stacks in the launcher's file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fprobe.calls.stacks import Stacks, piece_offsets
from fprobe.run import session
from fprobe.run.tracee.own_modules import OURS
from fprobe.run.tracee.table import MapSpace


def shared_stacks(address: str, space: MapSpace) -> Stacks:
    """Make the table. The launcher is told where it is, and which code is ours."""
    offsets, size = piece_offsets()
    start = space.take(size)
    made = Stacks(start)
    ours = Path(session.__file__).parents[2]
    session.note(
        address,
        stacks={
            "offset": space.where(start)[0],
            "pieces": offsets,
            "minor": sys.version_info.minor,
            "packages": [f"{ours / name}{os.sep}" for name in OURS],
            "tracee": f"{Path(__file__).parent}{os.sep}",
        },
    )
    if made.why_no_python:
        session.note(address, remark=f"--stacks shows no frames of Python: {made.why_no_python}")
    return made
