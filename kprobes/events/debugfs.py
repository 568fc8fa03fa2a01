"""The directory `kprobes` of debugfs, which is not part of tracefs, and the texts of its files.

from kprobes.events.debugfs import debugfs

print(debugfs.read("kprobes/list"))
"""

from __future__ import annotations

from collections.abc import Callable

from ftrace.core.kstrtox import kstrtobool
from ftrace.tracing.files.nodes import Directory, TextFile
from ftrace.tracing.tracefs.tree import Tracefs
from kprobes import states
from kprobes.checks import blacklist
from kprobes.place import Place
from kprobes.probe import KPROBE_FLAG_DISABLED, KPROBE_FLAG_GONE, kprobe
from kprobes.registration import registered_probes


def kprobes_list() -> str:
    """The file `list` of debugfs, one line for each registered probe: address, k or r, symbol+offset, module, flags.

    Of several probes at one address, the newest is first. Probes that this package registers for itself, for example on dlopen
    while an event waits for a library, are not shown.
    """
    places: dict[Place, list[kprobe]] = {}
    for p in registered_probes():
        if p.is_listed and (place := p.place) is not None:
            places.setdefault(place, []).insert(0, p)
    return "".join(f"{_line(p, place)}\n" for place, probes in places.items() for p in probes)


def _line(p: kprobe, place: Place) -> str:
    kind = "r" if p.is_return_probe else "k"
    where = f"{place.symbol.name}+{place.address - place.symbol.address:#x}"
    return f"{place.address:016x}  {kind}  {where}  {place.symbol.module or ' '} {_flags(p, place)}"


def _flags(p: kprobe, place: Place) -> str:
    """GONE hides DISABLED; the other two are flags of the place."""
    gone = p.flags & KPROBE_FLAG_GONE
    words = ["[GONE]"] if gone else ["[DISABLED]"] if p.flags & KPROBE_FLAG_DISABLED else []
    words += ["[OPTIMIZED]"] if place.optimized else []
    words += ["[FTRACE]"] if place.on_ftrace else []
    return "".join(words)


def kprobes_blacklist() -> str:
    """The file `blacklist` of debugfs: start, end (exclusive) and name of each excluded range, in the order of insertion."""
    return "".join(f"0x{entry.start:016x}-0x{entry.end:016x}\t{entry.name}\n" for entry in blacklist())


def read_kprobes_enabled() -> str:
    """The file `enabled` of debugfs: 0 or 1, and a newline."""
    return f"{int(states.kprobes_enabled())}\n"


def write_kprobes_enabled(text: str) -> None:
    """Write to the file `enabled` of debugfs. Raises OSError: EINVAL if `text` is not a truth value; errors of arming."""
    states.set_kprobes_enabled(kstrtobool(text))


_OWNER = 0o600


def _private(read: Callable[[], str], write: Callable[[str], None] | None = None) -> TextFile:
    """A file that only its owner can read."""
    file = TextFile(read, write)
    file.mode &= _OWNER
    return file


debugfs = Tracefs()
"""The process's debugfs."""
debugfs.add(
    "kprobes",
    Directory(
        {
            "blacklist": _private(kprobes_blacklist),
            "enabled": _private(read_kprobes_enabled, write_kprobes_enabled),
            "list": _private(kprobes_list),
        }
    ),
)
