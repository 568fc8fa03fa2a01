"""What the arguments of the functions mean that people trace: flags, modes, descriptors, buffers with their lengths.

A meaning is a word, by position: `TABLE["openat"][1]` is `path`. Arguments beyond those that the prototype names, such as the
mode of open(2), are those of a variable number.
"""

from __future__ import annotations

from typing import NamedTuple

TEXT_LIMIT, PATH_LIMIT, BUFFER_LIMIT = 64, 4096, 64
"""The maximum number of bytes that are copied of a string, of a path, and of a buffer."""
_STAT_BYTES, _ADDRESS_BYTES, _PIPE_BYTES = 64, 128, 8

_WRITTEN = {
    "open open64": "path open mode",
    "openat openat64": "dirfd path open mode",
    "creat creat64": "path mode",
    "close": "fd",
    "read": "fd out size",
    "pread pread64": "fd out size offset",
    "write": "fd in:2 size",
    "pwrite pwrite64": "fd in:2 size offset",
    "lseek lseek64": "fd offset seek",
    "stat lstat stat64 lstat64": "path stat",
    "fstat fstat64": "fd stat",
    "fstatat fstatat64": "dirfd path stat at",
    "access": "path access",
    "faccessat": "dirfd path access at.access",
    "unlink rmdir chdir chroot": "path",
    "unlinkat": "dirfd path at",
    "rename link symlink": "path path",
    "renameat": "dirfd path dirfd path",
    "readlink": "path out size",
    "readlinkat": "dirfd path out size",
    "mkdir chmod": "path mode",
    "mkdirat": "dirfd path mode",
    "fchmod": "fd mode",
    "truncate truncate64": "path offset",
    "umask": "mode",
    "mmap mmap64": "pointer size prot map fd offset",
    "mprotect": "pointer size prot",
    "munmap": "pointer size",
    "madvise": "pointer size madvise",
    "msync": "pointer size msync",
    "mremap": "pointer size size mremap",
    "socket": "family socket protocol",
    "socketpair": "family socket protocol pair",
    "connect bind": "fd address:2 size",
    "accept getsockname getpeername": "fd address_out:2 pointer",
    "accept4": "fd address_out:2 pointer socket.flags",
    "listen": "fd int",
    "shutdown": "fd shut",
    "send": "fd in:2 size msg",
    "sendto": "fd in:2 size msg address:5 size",
    "recv": "fd out size msg",
    "recvfrom": "fd out size msg address_out:5 pointer",
    "setsockopt": "fd sol sockopt:1 pointer size",
    "getsockopt": "fd sol sockopt:1 pointer pointer",
    "fcntl fcntl64": "fd fcntl fcntl_argument:1",
    "ioctl": "fd ioctl hex",
    "dup": "fd",
    "dup2": "fd fd",
    "dup3": "fd fd dup",
    "pipe": "pair",
    "pipe2": "pair pipe",
    "kill": "int signal",
    "raise": "signal",
    "sigprocmask pthread_sigmask": "sigmask pointer pointer",
    "signal": "signal pointer",
    "sigaction": "signal pointer pointer",
    "waitpid": "int status wait",
    "epoll_create1": "epoll.create",
    "epoll_ctl": "fd epoll fd pointer",
    "eventfd": "int eventfd",
    "clock_gettime clock_getres": "clock",
    "flock": "fd flock",
    "execve": "path pointer pointer",
    "dlopen": "path dlopen",
    "memfd_create": "string memfd",
    "getrandom": "out size random",
    "fopen fopen64": "path string",
    "opendir": "path",
}
TABLE: dict[str, list[str]] = {name: words.split() for names, words in _WRITTEN.items() for name in names.split()}


class Target(NamedTuple):
    """What a pointer leads to. `most`: bytes; `is_text`: it ends at a NUL.

    `length`: the argument, by position, that has the number of bytes; -1: the result; None: `most`. `through`: the argument
    points to that number. `at_return`: it is there when a function has succeeded. `is_certain`: it is a text; else it is one
    if it looks like one.
    """

    most: int
    is_text: bool = False
    length: int | None = None
    through: bool = False
    at_return: bool = False
    is_certain: bool = True


def target(meaning: str) -> Target | None:
    """What an argument with this meaning leads to; None if it is shown as it is."""
    word, _, number = meaning.partition(":")
    if word in ("path", "string"):
        return Target(PATH_LIMIT if word == "path" else TEXT_LIMIT, is_text=True)
    if word == "in":
        return Target(BUFFER_LIMIT, length=int(number))
    if word == "out":
        return Target(BUFFER_LIMIT, length=-1, at_return=True)
    if word == "address":
        return Target(_ADDRESS_BYTES, length=int(number))
    if word == "address_out":
        return Target(_ADDRESS_BYTES, length=int(number), through=True, at_return=True)
    sizes = {"stat": _STAT_BYTES, "pair": _PIPE_BYTES, "status": 4}
    return Target(sizes[word], at_return=True) if word in sizes else None
