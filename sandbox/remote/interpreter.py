"""The interpreter that is brought into a process without Python: a shared libpython of this machine, and its standard library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sandbox.remote.refusals import Refused
from sandbox.x86_64.remote_interpreter import OFFSETS

_NAME = re.compile(r"libpython3\.(\d+)\.so\.1\.0")
_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/lib")
_LINE = re.compile(r"\s+(libpython3\.\d+\.so\.1\.0) .*x86-64.* => (\S+)")


class Interpreter(NamedTuple):
    """A shared library, its minor version of Python 3, and its prefix: the directory with its standard library."""

    library: str
    minor: int
    home: str

    @property
    def files(self) -> tuple[str, str]:
        """Files that the process must be able to open."""
        return self.library, f"{self.home}/lib/python3.{self.minor}/encodings/__init__.py"


def find() -> Interpreter:
    """The interpreter to bring along: of this Python's version if there is one, else of another. Raises Refused."""
    found = next(_candidates(), None)
    if found is None:
        raise Refused(f"{what_is_needed()}, and there is none")
    return found


def find_for(pid: int) -> Interpreter:
    """The interpreter for process `pid`, whose user may not be ours. Raises Refused."""
    (library, *_), user = find(), _Reader(pid)
    found = next((each for each in _candidates() if all(map(user.reads, each.files))), None)
    if found is None:
        raise Refused(
            f"process {pid} belongs to user {user.uid}, who cannot read {library} and its standard library:"
            " install a shared libpython for all users"
        )
    _check(found, pid)
    return found


def _candidates() -> Iterator[Interpreter]:
    """All that there are, those of this Python's version first."""
    own, others = dict[Interpreter, None](), dict[Interpreter, None]()
    for path in _libraries():
        made = _interpreter(path)
        if made is not None and made.minor != sys.version_info.minor:
            others[made] = None
        elif made is not None and made not in own:
            own[made] = None
            yield made
    yield from sorted(others, key=lambda each: abs(each.minor - sys.version_info.minor))


class _Reader:
    """The user of process `pid`, if this process may be anybody; else this process."""

    def __init__(self, pid: int) -> None:
        owner = Path(f"/proc/{pid}").stat()
        self.uid, self._gid = owner.st_uid, owner.st_gid
        self._is_other = not os.geteuid() and self.uid != 0

    def reads(self, name: str) -> bool:
        """Whether this user can read the file."""
        if not self._is_other:
            return os.access(name, os.R_OK)
        child = os.fork()
        if not child:
            code = 1
            try:
                os.setgroups([])
                os.setgid(self._gid)
                os.setuid(self.uid)
                code = not os.access(name, os.R_OK)
            finally:
                os._exit(code)
        return not os.waitpid(child, 0)[1]


def _check(found: Interpreter, pid: int) -> None:
    """Raise Refused if process `pid` has other files by these names: it has another root directory, as in a container."""
    for name in found.files:
        try:
            is_same = Path(f"/proc/{pid}/root{name}").samefile(name)
        except OSError:
            is_same = False
        if not is_same:
            raise Refused(
                f"process {pid} has another file system, in which {name} is not this one (a container or chroot)"
            )


def what_is_needed() -> str:
    """What must be installed, as the beginning of a sentence."""
    return (
        f"a program that is not Python needs a shared libpython3.{sys.version_info.minor}.so of this machine"
        f" (Debian's package libpython3.{sys.version_info.minor}, or a Python of uv, conda or pyenv with --enable-shared)"
    )


def _libraries() -> Iterator[Path]:
    """Files that may be shared libraries of Python, this Python's own first."""
    own = sysconfig.get_config_var("INSTSONAME") or ""
    version = f"libpython3.{sys.version_info.minor}.so.1.0"
    for directory in (sysconfig.get_config_var("LIBDIR"), os.path.join(sys.base_prefix, "lib")):  # noqa: PTH118
        for name in (own, version):
            if directory and name.startswith("libpython"):
                yield Path(directory) / name
    for directory in _DIRECTORIES:
        yield Path(directory) / version
    yield from _of_loader()


def _of_loader() -> Iterator[Path]:
    """The libraries that the dynamic loader finds by name."""
    try:
        text = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return
    for line in text.splitlines():
        if found := _LINE.match(line):
            yield Path(found[2])


def _interpreter(path: Path) -> Interpreter | None:
    """None if it is not there, if its version is not known, or its standard library is not beside it."""
    named = _NAME.fullmatch(path.name)
    if named is None or int(named[1]) not in OFFSETS or not path.is_file():
        return None
    real = path.resolve()
    for prefix in real.parents:
        if (prefix / "lib" / f"python3.{named[1]}" / "encodings" / "__init__.py").is_file():
            return Interpreter(str(real), int(named[1]), str(prefix))
    return None
