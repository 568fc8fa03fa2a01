"""The compiled objects that an attachment needs, made here and passed on: nothing is compiled in the target.

Which they are is known after a rehearsal in a process of the target's Python, or of this one if the version is the same. That is
necessary once for each version of Python and kind of report; afterwards the object cache knows.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fprobe.run.session import Settings
from sandbox.compile.cache import Cache, default_cache
from sandbox.compile.cache import key as key_of
from sandbox.symbols.file_names import short_name

_VERSION = re.compile(r"/(?:lib)?python3\.(\d+)[^/]*$", re.MULTILINE)
_LONGEST = 180
"""Seconds of a rehearsal: everything is compiled."""
_TRIES = 2
"""How often it is rehearsed: other processes may delete objects from the cache meanwhile."""
_ENVIRONMENT = ("LD_LIBRARY_PATH", "PYTHONHOME")
_PLACE = re.compile(r"[prf]\S*\s+(?P<library>[^\s:+%]+):")


def objects_for(
    pid: int, brought: int | None, entering: str, paths: Sequence[str], settings: Settings, state: str
) -> dict[str, bytes]:
    """The objects by key. Empty if they cannot be known beforehand: then the target makes them itself.

    `brought`: the minor version of the interpreter that is brought along, if the process has none. `entering`: the text that
    imports our packages; `paths`: their directories; `state`: of our files, '' if they have changed since this process began.
    """
    minor = _version(pid) if brought is None else brought
    if minor is None:
        return {}
    cache = default_cache()
    known = key_of("attach", state, str(minor), json.dumps(_kind(settings))) if state else ""
    keys = _listed(cache, known) if known else []
    found = _contents(cache, keys)
    for _ in range(_TRIES):
        if keys and len(found) == len(keys):
            break
        keys = _rehearsed(pid, minor, entering, paths, settings)
        if known:  # else the target reads our files as they are now
            cache.put(known, json.dumps(keys).encode())
        found = _contents(cache, keys)
        if not found:  # there is no cache
            break
    return found


def _kind(settings: Settings) -> dict[str, object]:
    """The settings on which objects depend. With events, it matters whether their functions have other probes, too."""
    text = settings._asdict()
    plain = ("children",) if settings.events else ("patterns", "stacks", "handled", "children")
    return text | {name: bool(text[name]) for name in plain}


def _listed(cache: Cache, known: str) -> list[str]:
    data = cache.get(known)
    return [str(each) for each in json.loads(data)] if data else []


def _contents(cache: Cache, keys: Sequence[str]) -> dict[str, bytes]:
    return {key: data for key in keys if (data := cache.get(key)) is not None}


def _version(pid: int) -> int | None:
    """The minor version of the process's Python, from the names of its files; None if that does not tell."""
    try:
        found = _VERSION.search(Path(f"/proc/{pid}/maps").read_text(errors="replace"))
    except OSError:
        return None
    return int(found[1]) if found else None


def _rehearsed(pid: int, minor: int, entering: str, paths: Sequence[str], settings: Settings) -> list[str]:
    """The keys of the objects; empty if no Python can make them.

    A program of another user is not run, nor one that is not Python itself.
    """
    if minor == sys.version_info.minor:
        python, environment = sys.executable, dict(os.environ)
    elif Path(f"/proc/{pid}").stat().st_uid == os.geteuid() and _is_python(pid):
        python, environment = f"/proc/{pid}/exe", dict(os.environ) | _environment(pid)
    else:
        return []
    call = f"rehearse({list(paths)!r}, {settings._asdict()!r}, {_libraries(pid, settings)!r}, {os.getpid()})"
    command = [python, "-I", "-S", "-c", f"{entering}\n{call}\n"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LONGEST, env=environment, stdin=subprocess.DEVNULL
        )
        return [str(each) for each in json.loads(done.stdout.splitlines()[-1])] if not done.returncode else []
    return []


def _is_python(pid: int) -> bool:
    """Whether the program is a Python: others may have one within, and would begin anew with our text as their arguments."""
    name = os.readlink(f"/proc/{pid}/exe").rpartition("/")[2]  # noqa: PTH115  # the text of the link
    return name.removesuffix(" (deleted)").startswith("python")


def _environment(pid: int) -> dict[str, str]:
    """Those of its environment's variables that its Python may need to start."""
    with contextlib.suppress(OSError):
        data = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape")
        found = dict(each.partition("=")[::2] for each in data.split("\0"))
        return {name: found[name] for name in _ENVIRONMENT if name in found}
    return {}


def _libraries(pid: int, settings: Settings) -> list[str]:
    """The files of the libraries that definitions of events name."""
    named = {found["library"] for text in settings.events if (found := _PLACE.match(text))}
    lines = os.fsdecode(Path(f"/proc/{pid}/maps").read_bytes()).split("\n")  # a path may be any bytes
    paths = {line.split(None, 5)[5] for line in lines if " /" in line}
    return sorted(path for path in paths if {short_name(name := path.rpartition("/")[2]), name} & named)
