"""The kernel's tests of ftrace, from Debian's linux-source-6.12 (GPL): they stay where they are unpacked, outside this tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGE = "linux-source-6.12"
SELFTESTS = "tools/testing/selftests/ftrace"
_PLACE = Path("/var/tmp", f"fprobe-{PACKAGE}")
_UNPACK = (
    f"dpkg-deb --fsys-tarfile {PACKAGE}_*.deb | tar -xO --wildcards './usr/src/*.tar.xz' "
    f"| tar -xJ --strip-components 1 --wildcards '*/{SELFTESTS}'"
)


def fetched() -> Path:
    """The part of the source tree that has the tests; fetched by apt, unless it has been before. Raises SystemExit."""
    _PLACE.mkdir(mode=0o700, exist_ok=True)
    if _PLACE.stat().st_uid != os.geteuid():
        sys.exit(f"{_PLACE} belongs to another user; remove it, or give a source tree: make ftracetest LINUX=DIR")
    if not (_PLACE / SELFTESTS / "ftracetest").exists():
        for command in (f"apt-get download -q {PACKAGE}", f"set -o pipefail; {_UNPACK}"):
            if subprocess.run(["bash", "-c", command], cwd=_PLACE, check=False).returncode:
                sys.exit(
                    f"`{command}` fails in {_PLACE}; `apt-get update` may help, or give a tree: make ftracetest LINUX=DIR"
                )
        for package in _PLACE.glob("*.deb"):
            package.unlink()
    return _PLACE
