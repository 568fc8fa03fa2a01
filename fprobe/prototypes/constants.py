"""Names of flags and of other numbers that system calls take, by groups: `open`, `mmap.prot`, `socket.family`, ..."""

from __future__ import annotations

from pathlib import Path

from sandbox.process.once import once

_FILE = Path(__file__).with_name("constants.txt")

WANTED: dict[str, tuple[str, ...]] = {
    group: tuple(names.split())
    for group, names in {
        "access": "F_OK R_OK W_OK X_OK",
        "accmode": "O_RDONLY O_WRONLY O_RDWR",
        "open": "O_CREAT O_EXCL O_NOCTTY O_TRUNC O_APPEND O_NONBLOCK O_SYNC O_ASYNC O_DSYNC O_DIRECT O_NOFOLLOW O_NOATIME "
        "O_CLOEXEC O_PATH __O_TMPFILE O_DIRECTORY",
        "at": "AT_SYMLINK_NOFOLLOW AT_REMOVEDIR AT_SYMLINK_FOLLOW AT_NO_AUTOMOUNT AT_EMPTY_PATH",
        "at.access": "AT_EACCESS AT_SYMLINK_NOFOLLOW AT_EMPTY_PATH",
        "prot": "PROT_READ PROT_WRITE PROT_EXEC PROT_GROWSDOWN PROT_GROWSUP",
        "map.type": "MAP_SHARED MAP_PRIVATE MAP_SHARED_VALIDATE",
        "map": "MAP_FIXED MAP_ANONYMOUS MAP_32BIT MAP_GROWSDOWN MAP_DENYWRITE MAP_EXECUTABLE MAP_LOCKED MAP_NORESERVE "
        "MAP_POPULATE MAP_NONBLOCK MAP_STACK MAP_HUGETLB MAP_SYNC MAP_FIXED_NOREPLACE",
        "madvise": "MADV_NORMAL MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED MADV_DONTNEED MADV_FREE MADV_REMOVE MADV_DONTFORK "
        "MADV_DOFORK MADV_MERGEABLE MADV_UNMERGEABLE MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTDUMP MADV_DODUMP "
        "MADV_WIPEONFORK MADV_KEEPONFORK MADV_COLD MADV_PAGEOUT",
        "mremap": "MREMAP_MAYMOVE MREMAP_FIXED",
        "msync": "MS_ASYNC MS_INVALIDATE MS_SYNC",
        "family": "AF_UNSPEC AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_PACKET AF_VSOCK AF_ALG AF_BLUETOOTH AF_CAN",
        "socket.type": "SOCK_STREAM SOCK_DGRAM SOCK_RAW SOCK_RDM SOCK_SEQPACKET SOCK_PACKET",
        "socket": "SOCK_CLOEXEC SOCK_NONBLOCK",
        "protocol": "IPPROTO_IP IPPROTO_ICMP IPPROTO_TCP IPPROTO_UDP IPPROTO_IPV6 IPPROTO_RAW IPPROTO_ICMPV6 IPPROTO_SCTP",
        "sol": "SOL_SOCKET IPPROTO_IP IPPROTO_TCP IPPROTO_UDP IPPROTO_IPV6",
        "so": "SO_DEBUG SO_REUSEADDR SO_TYPE SO_ERROR SO_DONTROUTE SO_BROADCAST SO_SNDBUF SO_RCVBUF SO_KEEPALIVE SO_OOBINLINE "
        "SO_PRIORITY SO_LINGER SO_REUSEPORT SO_PASSCRED SO_PEERCRED SO_RCVLOWAT SO_SNDLOWAT SO_RCVTIMEO SO_SNDTIMEO "
        "SO_BINDTODEVICE SO_TIMESTAMP SO_ACCEPTCONN SO_PROTOCOL SO_DOMAIN",
        "tcp": "TCP_NODELAY TCP_MAXSEG TCP_CORK TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_DEFER_ACCEPT TCP_INFO TCP_QUICKACK "
        "TCP_CONGESTION TCP_FASTOPEN TCP_USER_TIMEOUT",
        "msg": "MSG_OOB MSG_PEEK MSG_DONTROUTE MSG_CTRUNC MSG_TRUNC MSG_DONTWAIT MSG_EOR MSG_WAITALL MSG_CONFIRM MSG_ERRQUEUE "
        "MSG_NOSIGNAL MSG_MORE MSG_WAITFORONE MSG_ZEROCOPY MSG_FASTOPEN MSG_CMSG_CLOEXEC",
        "shut": "SHUT_RD SHUT_WR SHUT_RDWR",
        "fcntl": "F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_GETLK F_SETLK F_SETLKW F_SETOWN F_GETOWN F_SETSIG F_GETSIG "
        "F_SETLEASE F_GETLEASE F_NOTIFY F_DUPFD_CLOEXEC F_SETPIPE_SZ F_GETPIPE_SZ F_ADD_SEALS F_GET_SEALS "
        "F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW",
        "fd": "FD_CLOEXEC",
        "seals": "F_SEAL_SEAL F_SEAL_SHRINK F_SEAL_GROW F_SEAL_WRITE",
        "seek": "SEEK_SET SEEK_CUR SEEK_END SEEK_DATA SEEK_HOLE",
        "pipe": "O_CLOEXEC O_NONBLOCK O_DIRECT",
        "dup": "O_CLOEXEC",
        "wait": "WNOHANG WUNTRACED WCONTINUED WEXITED WNOWAIT",
        "epoll": "EPOLL_CTL_ADD EPOLL_CTL_DEL EPOLL_CTL_MOD",
        "epoll.create": "EPOLL_CLOEXEC",
        "eventfd": "EFD_CLOEXEC EFD_NONBLOCK EFD_SEMAPHORE",
        "clock": "CLOCK_REALTIME CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID CLOCK_THREAD_CPUTIME_ID CLOCK_MONOTONIC_RAW "
        "CLOCK_REALTIME_COARSE CLOCK_MONOTONIC_COARSE CLOCK_BOOTTIME CLOCK_REALTIME_ALARM CLOCK_BOOTTIME_ALARM CLOCK_TAI",
        "signal": "SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2 SIGPIPE SIGALRM "
        "SIGTERM SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGXCPU SIGXFSZ SIGVTALRM SIGPROF SIGWINCH "
        "SIGIO SIGPWR SIGSYS",
        "sigmask": "SIG_BLOCK SIG_UNBLOCK SIG_SETMASK",
        "flock": "LOCK_SH LOCK_EX LOCK_NB LOCK_UN",
        "dlopen": "RTLD_LAZY RTLD_NOW RTLD_GLOBAL RTLD_NODELETE RTLD_NOLOAD RTLD_DEEPBIND",
        "memfd": "MFD_CLOEXEC MFD_ALLOW_SEALING MFD_HUGETLB",
        "random": "GRND_NONBLOCK GRND_RANDOM",
        "ioctl": "TCGETS TCSETS TCSETSW TCSETSF TIOCGWINSZ TIOCSWINSZ TIOCGPGRP TIOCSPGRP FIONREAD FIONBIO FIOCLEX FIONCLEX",
    }.items()
}
"""The names of each group; those that a machine's headers do not define are left out."""


@once
def groups() -> dict[str, dict[int, str]]:
    """The names by number, of each group. Of several names of a number, the first one counts."""
    found: dict[str, dict[int, str]] = {}
    for line in _FILE.read_text().splitlines():
        group, name, number = line.split("\t")
        found.setdefault(group, {}).setdefault(int(number), name)
    return found


def named(number: int, group: str) -> str:
    """The name of a number; the number in decimal if it has none."""
    return groups()[group].get(number, str(number))


def flags(number: int, group: str, exclusive: str = "", mask: int = 0) -> str:
    """The names of a number's bits, joined by `|`, and the bits that have no name in hexadecimal; `0` for none.

    `exclusive`: the group of what the bits of `mask` say together, such as O_RDONLY.
    """
    parts = [groups()[exclusive].get(number & mask, hex(number & mask))] if exclusive else []
    left = number & ~mask
    for bits, name in sorted(groups()[group].items(), key=lambda each: -each[0].bit_count()):
        if bits and left & bits == bits:
            parts.append(name)
            left &= ~bits
    order = {name: at for at, name in enumerate(WANTED[group])}
    parts.sort(key=lambda name: order.get(name, -1))
    parts += [hex(left)] if left else []
    return "|".join(parts) or "0"
