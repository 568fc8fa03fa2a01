"""The files of other packages, found without importing them.

In a process that fprobe has attached to, our packages have a prefix, and others have it too where the program does not have
them (`fprobe.run.tracee.entering`).
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

PREFIX = __name__.removesuffix("sandbox.process.packages")
"""The prefix of our packages' names in `sys.modules`: usually empty."""


def package_file(name: str) -> Path | None:
    """The file of a top-level package as our modules would import it; None if there is none."""
    loaded = sys.modules.get(name)
    spec = loaded.__spec__ if loaded is not None else find_spec(PREFIX + name)
    return Path(spec.origin) if spec is not None and spec.origin else None
