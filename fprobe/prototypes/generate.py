"""Writes `prototypes.txt` and `constants.txt` from the headers of this machine: `python -m fprobe.prototypes.generate`.

A C file that takes the address of each function that a library exports and its headers declare is compiled with `-g`; the types
come from that debug information, the names of parameters from the headers' text. It is run before a release, on a machine with
the development packages of the libraries and dpkg.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fprobe.prototypes.constants import WANTED
from fprobe.prototypes.described import stripped, structure_behind
from fprobe.prototypes.prototypes import DATA
from sandbox.abi import layout
from sandbox.abi.signatures import Floating, Integer, Pointer, Record, Type, Void
from sandbox.symbols.dwarf_entries import name_in, name_of, type_die
from sandbox.symbols.dwarf_types import type_of

CONSTANTS = DATA.with_name("constants.txt")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_HEADERS = _words(
    "fcntl sys/stat sys/mman sys/socket netinet/in netinet/tcp signal sys/wait poll sys/epoll unistd sys/eventfd "
    "sys/timerfd sys/inotify sys/file sys/ioctl termios errno time sched sys/mount sys/prctl dlfcn sys/random sys/uio netdb"
)
"""Headers that define the names of flags."""


class Source(NamedTuple):
    """A library, and the headers that declare its functions. `headers`: names, or globs below /usr/include."""

    name: str
    package: str
    licence: str
    headers: tuple[str, ...]


_LIBC = (
    "aio alloca arpa/inet assert argz byteswap complex cpio ctype dirent dlfcn envz err errno error execinfo fcntl fenv "
    "fmtmsg fnmatch fstab fts ftw getopt glob gnu/libc-version grp gshadow iconv ifaddrs inttypes langinfo libgen libintl "
    "limits link locale malloc mcheck mntent monetary mqueue net/if netdb netinet/in nl_types obstack paths poll printf "
    "pthread pty pwd regex resolv sched search semaphore setjmp sgtty shadow signal spawn stdio stdio_ext stdlib string "
    "strings sys/auxv sys/epoll sys/eventfd sys/fanotify sys/file sys/fsuid sys/inotify sys/ioctl sys/ipc sys/klog sys/mman "
    "sys/mount sys/msg sys/personality sys/poll sys/prctl sys/ptrace sys/quota sys/random sys/reboot sys/resource "
    "sys/select sys/sem sys/sendfile sys/shm sys/signalfd sys/socket sys/stat sys/statfs sys/statvfs sys/swap sys/syscall "
    "sys/sysinfo sys/syslog sys/time sys/timeb sys/timerfd sys/times sys/timex sys/uio sys/un sys/utsname sys/vfs sys/wait "
    "sys/xattr syslog termios threads time uchar ucontext ulimit unistd utime utmp utmpx wchar wctype wordexp"
)
SOURCES = (
    Source("libc.so.6", "libc6-dev", "LGPL-2.1-or-later", tuple(f"{name}.h" for name in _LIBC.split())),
    Source("libm.so.6", "libc6-dev", "LGPL-2.1-or-later", ("math.h", "complex.h", "fenv.h")),
    Source("libz.so.1", "zlib1g-dev", "Zlib", ("zlib.h",)),
    Source("libssl.so.3", "libssl-dev", "Apache-2.0", ("openssl/ssl.h",)),
    Source("libcrypto.so.3", "libssl-dev", "Apache-2.0", ("openssl/*.h",)),
    Source("libsqlite3.so.0", "libsqlite3-dev", "public domain", ("sqlite3.h",)),
)
_INTEGERS = {(8, True): "b", (8, False): "B", (16, True): "h", (16, False): "H", (32, True): "i", (32, False): "I",
             (64, True): "l", (64, False): "L", (1, False): "o"}  # fmt: skip
_FLOATING = {"float": "f", "double": "d", "x86_fp80": "e", "fp128": "q"}
_WORD = 8
_SYSTEM_CALLS = re.compile(
    r"/(?:unistd|fcntl|dirent|poll|sched|signal|spawn|termios|utime|mqueue|"
    r"sys/(?:epoll|eventfd|fanotify|file|inotify|ioctl|mman|mount|msg|personality|prctl|quota|random|reboot|resource|select|sem|"
    r"sendfile|shm|signalfd|socket|stat|statfs|statvfs|swap|sysinfo|time|timerfd|times|timex|uio|utsname|wait|xattr)|"
    r"bits/(?:fcntl|socket|mman|mman-shared|mman_ext|epoll|statx|statx-generic|fcntl-linux|sched|timex))\.h$"
)
"""Headers whose functions return -1 and set errno."""
_NO_ERRNO = re.compile(
    r"posix_|pthread_|sig(?:wait$|ismember|isemptyset)|(?:sysconf|pathconf|fpathconf|getopt|getpriority|nice|ulimit|isatty|alarm|"
    r"sched_get_priority|getpid|getppid|get[eug]+id|confstr|gethostid|closedir_r|readdir_r|readdir64_r|ftruncate_r|ttyname_r|"
    r"getlogin_r|dirfd|alphasort|versionsort|swab|encrypt|crypt|umask|clone|nonexistent|grantpt)"
)
"""Functions in them that say it otherwise, or return -1 where nothing has failed."""
_NULL_ERRNO = frozenset(
    _words(
        "fopen fopen64 fdopen freopen freopen64 tmpfile tmpfile64 popen opendir fdopendir malloc calloc realloc "
        "reallocarray memalign aligned_alloc valloc pvalloc getcwd realpath canonicalize_file_name strdup strndup "
        "get_current_dir_name shmat mmap mmap64 mremap sbrk"
    )
)
"""Functions that return no pointer and set errno."""
_ALSO = frozenset(
    _words(
        "nanosleep clock_gettime clock_settime clock_getres timer_create timer_delete timer_gettime timer_settime "
        "timer_getoverrun rename renameat renameat2 remove mkstemp mkstemp64 mkostemp setenv unsetenv fclose fflush fseek "
        "fseeko ftell ftello fileno"
    )
)
"""Functions of other headers that return -1 and set errno."""


class _Structures:
    """The structures that pointers lead to, by number."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, kind: Record) -> int:
        """Its number. Raises ValueError if a value of it cannot be shown."""
        at = [(offset, name, _code(field)) for offset, name, field in layout.fields_of(kind)]
        fields = " ".join(f"{name or '_'}:{code}:{offset}" for offset, name, code in at)
        line = f"{kind.name.rpartition(' ')[2] or '_'} {layout.size_of(kind)} {layout.alignment_of(kind)} {fields}"
        if line not in self._numbers:
            self._numbers[line] = len(self.lines)
            self.lines.append(line)
        return self._numbers[line]


def _code(kind: Type) -> str:
    """The code of a scalar. Raises ValueError for other types."""
    if isinstance(kind, Void):
        return "v"
    if isinstance(kind, Pointer):
        return "p"
    if isinstance(kind, Integer) and kind.name == "char":
        return "c"
    found = _INTEGERS.get((kind.bits, kind.signed is not False)) if isinstance(kind, Integer) else None
    found = _FLOATING.get(kind.kind) if isinstance(kind, Floating) else found
    if found is None:
        raise ValueError(f"no code for {kind}")
    return found


def _written(die: Any, structures: _Structures) -> str:
    """The code of the type that `die` refers to. Raises ValueError if it has none."""
    kind = type_of(die)
    if isinstance(kind, Pointer):
        return _pointer(die, structures)
    if isinstance(kind, Record):
        if layout.size_of(kind) == _WORD and all(isinstance(field, Pointer) for _, field in kind.fields):
            return "p"  # a transparent union of pointers, such as the address that connect() takes
        return f"{{{structures.number(kind)}}}"
    return _code(kind)


def _pointer(die: Any, structures: _Structures) -> str:
    """`s` for a string that is only read, `*N` for a structure that is only read, `&N` for one that may be written."""
    pointer = stripped(type_die(die))
    target = type_die(pointer)
    if (target is not None and target.tag == "DW_TAG_const_type") or die.tag == "DW_TAG_subprogram":
        text = stripped(target)
        if text is not None and text.tag == "DW_TAG_base_type" and name_of(text) == "char":
            return "s"  # those of `unsigned char` are data with a length
    behind = structure_behind(die)
    if behind is None:
        return "p"
    try:
        return f"{'*' if behind[1] else '&'}{structures.number(behind[0])}"
    except (ValueError, TypeError):
        return "p"


# -- declarations ------------------------------------------------------------------------------------------------------


def _compiler(*options: str) -> list[str]:
    return ["gcc", "-D_GNU_SOURCE", "-DOPENSSL_SUPPRESS_DEPRECATED", "-w", "-fno-builtin", *options]


def _included(source: Source) -> str:
    include = Path("/usr/include")
    found = [
        path.relative_to(include).as_posix()
        for pattern in source.headers
        for directory in (include, include / "x86_64-linux-gnu")
        for path in (sorted(directory.glob(pattern)) if "*" in pattern else [directory / pattern])
        if path.exists() and path.is_relative_to(include)
    ]
    names = dict.fromkeys(name.removeprefix("x86_64-linux-gnu/") for name in found)
    usable = [name for name in names if not name.endswith(("asn1_mac.h", "__DECC_INCLUDE_PROLOGUE.H"))]
    return "".join(f"#include <{name}>\n" for name in ["stdio.h", "stddef.h", "sys/types.h", *usable])


def _exported(library: str) -> set[str]:
    path = subprocess.run(["gcc", f"-print-file-name={library}"], capture_output=True, text=True, check=True).stdout
    listed = subprocess.run(["nm", "-D", "--defined-only", path.strip()], capture_output=True, text=True, check=True)
    rows = (line.split() for line in listed.stdout.splitlines())
    return {name.partition("@")[0] for _, kind, name in rows if kind in "TWi"}


_DECLARED = re.compile(r"^/\* [^*]* \*/ extern [^(;]*?(?:\(\*)?\b(\w+) \(", re.MULTILINE)


def _declared(text: str, directory: Path) -> set[str]:
    """The functions that the headers declare."""
    (directory / "all.c").write_text(text)
    listing = directory / "all.txt"
    subprocess.run(_compiler("-aux-info", str(listing), "-c", str(directory / "all.c"), "-o", "/dev/null"), check=True)
    return set(_DECLARED.findall(listing.read_text()))


def _definitions(text: str, names: Iterable[str], directory: Path) -> Iterator[Any]:
    """The debug information entries of the declarations of these functions."""
    from elftools.elf.elffile import ELFFile

    table = ", ".join(f"(void *) {name}" for name in sorted(names))
    (directory / "named.c").write_text(f"{text}void *table[] = {{{table}}};\n")
    subprocess.run(_compiler("-g", "-c", str(directory / "named.c"), "-o", str(directory / "named.o")), check=True)
    file = ELFFile(io.BytesIO((directory / "named.o").read_bytes()))
    for unit in file.get_dwarf_info().iter_CUs():
        yield from (die for die in unit.get_top_DIE().iter_children() if die.tag == "DW_TAG_subprogram")


_PARAMETER = re.compile(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$")
_KEYWORDS = frozenset(
    _words(
        "int char short long unsigned signed float double void const volatile restrict struct union enum _Bool __restrict "
        "__const _Complex"
    )
)


def parameter_names(preprocessed: str, function: str) -> list[str]:
    """The names of a function's parameters in the text of its declaration; those without a name are ''."""
    found = re.search(rf"\b{function}\s*\(([^;{{}}]*)\)[^;{{}}()]*(?:\([^;]*\)[^;()]*)*;", preprocessed)
    if found is None:
        return []
    return [_parameter_name(text) for text in _split(found[1])]


def _split(text: str) -> Iterator[str]:
    """The parameters of a list: split at its commas, up to its closing parenthesis."""
    depth, start = 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            yield text[start:at]
            return
        if letter == "," and not depth:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _parameter_name(text: str) -> str:
    if pointer := re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", text):
        return pointer[1].strip("_")
    words = re.findall(r"\w+|\*", re.sub(r"\[[^\]]*\]|__attribute__\s*\(\(.*?\)\)", "", text))
    meaning = [word for word in words if word not in _KEYWORDS]
    if not meaning or words[-1] in _KEYWORDS or words[-1] == "*":
        return ""
    is_tag = len(words) > 1 and words[-2] in ("struct", "union", "enum")
    has_type = "*" in words or len(meaning) > 1 or any(word in _KEYWORDS - {"const", "restrict"} for word in words[:-1])
    return words[-1].strip("_") if has_type and not is_tag else ""


def _line(die: Any, symbol: str, preprocessed: str, structures: _Structures, headers: dict[int, str]) -> str:
    """A function's line. Raises ValueError or TypeError if a type of it cannot be written."""
    children = list(die.iter_children())
    given = [child for child in children if child.tag == "DW_TAG_formal_parameter"]
    names = parameter_names(preprocessed, name_of(die))
    named = names if len(names) >= len(given) else []
    parts = [
        f"{named[at] if named and named[at].isidentifier() else ''}:{_written(child, structures)}"
        for at, child in enumerate(given)
    ]
    parts += ["..."] * any(child.tag == "DW_TAG_unspecified_parameters" for child in children)
    result = _written(die, structures)
    failing = _fails(name_of(die), result, headers.get(die.attributes["DW_AT_decl_file"].value, ""))
    return "\t".join([symbol, result + failing, " ".join(parts)])


def _fails(name: str, result: str, header: str) -> str:
    """`!` if the function sets errno and returns -1, or no pointer."""
    if name in _NULL_ERRNO or name in _ALSO:
        return "!"
    is_call = _SYSTEM_CALLS.search(header) and result in ("i", "l") and not _NO_ERRNO.match(name)
    return "!" if is_call else ""


def _section(source: Source) -> Iterator[str]:
    """The lines of a library."""
    text = _included(source)
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        wanted = _declared(text, directory)
        exported = _exported(source.name)
        preprocessed = subprocess.run(
            _compiler("-E", "-P", str(directory / "all.c")), capture_output=True, text=True, check=True
        ).stdout
        structures, functions = _Structures(), set[str]()
        for die in _definitions(text, wanted & _usable(exported), directory):
            headers = _headers(die)
            for symbol in {name_of(die), name_in(die, "DW_AT_linkage_name")} & exported:
                try:
                    functions.add(_line(die, symbol, preprocessed, structures, headers))
                except (ValueError, TypeError):
                    continue
    yield f"library\t{source.name}\t{source.package} {_version(source.package)}\t{source.licence}"
    yield from (f"struct\t{number}\t{line}" for number, line in enumerate(structures.lines))
    yield from sorted(functions)


def _usable(exported: set[str]) -> set[str]:
    return exported | {name.removeprefix("__isoc99_") for name in exported} | {"strerror_r", "basename"}


def _headers(die: Any) -> dict[int, str]:
    program = die.dwarfinfo.line_program_for_CU(die.cu)
    directories = [each.decode() for each in program["include_directory"]]
    return {
        number: f"/{directories[entry['dir_index']].lstrip('/')}/{entry['name'].decode()}"
        for number, entry in enumerate(program["file_entry"])
    }


def _version(package: str) -> str:
    return subprocess.run(
        ["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True, check=True
    ).stdout


def _constants() -> Iterator[str]:
    """The numbers of the names that flags have; names that the headers lack are left out."""
    includes = "".join(f"#include <{name}.h>\n" for name in _HEADERS)
    for group, names in WANTED.items():
        rows = "".join(
            f'#ifdef {name}\nprintf("{group}\\t{name}\\t%lld\\n", (long long) {name});\n#endif\n' for name in names
        )
        with tempfile.TemporaryDirectory() as made:
            path = Path(made) / "constants"
            path.with_suffix(".c").write_text(f"#include <stdio.h>\n{includes}int main(void) {{\n{rows}}}\n")
            subprocess.run(_compiler(str(path.with_suffix(".c")), "-o", str(path)), check=True)
            yield from subprocess.run([str(path)], capture_output=True, text=True, check=True).stdout.splitlines()


def main() -> None:
    """Write both files."""
    lines = [line for source in SOURCES for line in _section(source)]
    DATA.write_text("".join(f"{line}\n" for line in lines))
    CONSTANTS.write_text("".join(f"{line}\n" for line in _constants()))
    sys.stdout.write(f"{len(lines):,} lines, {DATA.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
