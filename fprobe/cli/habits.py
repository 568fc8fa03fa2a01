"""What users of perf, trace-cmd, bpftrace, strace, ltrace, uftrace and frida-trace write first: each with what to write here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_OF_VERB = {
    ("record", "-l"): "functions are given by --trace PATTERN",
    ("record", "-n"): "functions are left out by a PATTERN with ! in front, after --trace",
    ("record", "-g"): "callers are shown by `fprobe run --stacks PATTERN`, nested calls by `fprobe trace PATTERN`",
    ("record", "-F"): "nothing is sampled, every hit is recorded: give -e DEFINITION or --trace PATTERN",
    ("record", "-c"): "nothing is sampled, every hit is recorded: give -e DEFINITION or --trace PATTERN",
    ("record", "-P"): "a process is given by -p",
    ("record", "-s"): "the size of a buffer is given by -b",
    ("stat", "-e"): "functions are given as PATTERN, such as 'vfs_*'; -e is of `fprobe record` and `fprobe run`",
    ("stat", "-d"): "the time is given by --duration",
    ("report", "-i"): "the file is given without an option: fprobe report FILE",
    ("trace", "-e"): "functions are given as PATTERN, such as 'vfs_*'; -e is of `fprobe record` and `fprobe run`",
    ("trace", "-l"): "functions are given as PATTERN, such as 'vfs_*'",
    **dict.fromkeys(
        (("run", "-F"), ("run", "-i"), ("run", "-x"), ("run", "-C"), ("run", "-P"), ("run", "-I")),
        "functions are given by --trace PATTERN, or by --stat PATTERN to count and time them",
    ),
    ("run", "-l"): "functions of a library are given by --trace LIBRARY:PATTERN",
    **dict.fromkeys(
        (("run", "-A"), ("run", "-R"), ("run", "-T"), ("run", "-r"), ("run", "-tt")),
        "--trace PATTERN shows arguments, results and durations",
    ),
    ("run", "-N"): "functions cannot be left out: give patterns of those to probe",
    ("top", "-F"): "functions are given by --stat PATTERN",
}
VERBS = {
    "annotate": "`fprobe disasm` shows the code of a function",
    "attach": "a running process is given by -p of `fprobe stat`, `trace`, `run`, `record` and `top`",
    "check": "`fprobe doctor` tests what this machine supports",
    "dump": "`fprobe report FILE` shows a recording",
    "extract": "recordings are written by `fprobe record`; trace and trace_pipe are files of `fprobe tracefs sh`",
    "info": "`fprobe doctor` tests what this machine supports",
    "live": "a program is started by `fprobe run --trace PATTERN PROGRAM`",
    "probe": "events are defined by -e DEFINITION of `fprobe record` and `fprobe run`",
    "replay": "`fprobe report FILE --format tree` shows the calls of a recording",
    "reset": "tracing_on and the other switches are files of `fprobe tracefs sh`",
    "script": "`fprobe report FILE` shows a recording",
    "set": "the switches of tracing are files of `fprobe tracefs sh`",
    "show": "trace and trace_pipe are files of `fprobe tracefs sh`",
    "start": "tracing_on and the other switches are files of `fprobe tracefs sh`",
    "stop": "tracing_on and the other switches are files of `fprobe tracefs sh`",
    **dict.fromkeys(
        ("strace", "ltrace", "uftrace", "bpftrace", "perf", "gdb"),
        "calls are shown by --trace PATTERN of `fprobe run`, and counted by --stat PATTERN",
    ),
}
"""Verbs of these tools, and their names."""
_STARTING = ("run", "top")
"""Verbs that are followed by a program."""
_TRACERS = (
    "function",
    "function_graph",
    "nop",
    "stack",
    "wakeup",
    "wakeup_rt",
    "irqsoff",
    "preemptoff",
    "hwlat",
    "blk",
)
_PROBE = re.compile(r"(?P<kind>(?:u|uret|k|kret)probe|fentry|fexit):(?P<place>\S+)")
_OF_STRACE = re.compile(r"(?:trace|signal|read|write|inject|fault)=")
_OF_KERNEL = re.compile(
    r"(?:tracepoint:)?(?!probe_|[prf]\d+:)[a-z]\w+:[a-z]\w+|cycles|instructions|(?:cache|branch)-\w+|cpu-clock"
)
_KINDS = {"uretprobe": "r", "kretprobe": "r", "fentry": "f", "fexit": "f"}
"""The letters of lines for the kinds of probes of bpftrace; for others it is p."""


def advice(verb: str, words: Sequence[str], option: str = "") -> str:
    """What to write instead, as a part of a sentence; "" if nothing is known. `words`: all after the verb.

    `option`: the one that the verb does not have.
    """
    if verb == "record" and (found := of_process(_after(words, "-p"))):
        return found
    if verb not in _STARTING and (program := next(filter(is_program, words), "")):
        return of_program(program, verb)
    return _OF_VERB.get((verb, option), "")


def of_process(name: str) -> str:
    """What to write if -p is followed by a tracer, as for trace-cmd."""
    if name not in _TRACERS:
        return ""
    return (
        f"-p is a process here, and {name} is a tracer: write it to current_tracer by `fprobe tracefs sh`, or see calls by"
        " `fprobe trace PATTERN`"
    )


def _after(words: Sequence[str], option: str) -> str:
    at = words.index(option) + 1 if option in words else len(words)
    return words[at] if at < len(words) else ""


def is_program(word: str) -> bool:
    """Whether it names a file that `fprobe run` could start."""
    try:
        return Path(word).is_file() and (
            word.endswith(".py") or ("/" in word and Path(word).stat().st_mode & 0o111 != 0)
        )
    except (OSError, ValueError):
        return False


def of_program(program: str, verb: str = "") -> str:
    """How a program is started, with what the verb shows."""
    options = {"trace": "--trace PATTERN", "record": "-e DEFINITION -o FILE.parquet", "hist": "--hist PATTERN"}
    return f"a program is started by `fprobe run {options.get(verb, '--stat PATTERN')} {program}`"


def without_verb(option: str, words: Sequence[str]) -> str:
    """What to write instead of an option, such as -p, without a verb; "" if nothing is known."""
    if option in ("-p", "--pid"):
        return "give a verb before it, such as `fprobe stat PATTERN -p PID`"
    if option == "-e":
        return "give a verb before it, such as `fprobe record -e DEFINITION`"
    if option == "-V":
        return "the version is shown by --version"
    return next((of_program(word) for word in words if is_program(word)), "")


def instead_of_definition(text: str) -> str:
    """What to write in place of an event that is none of ours; "" if nothing is known."""
    if _OF_STRACE.match(text):
        calls = re.sub(r"[^\w,]", "", text.rpartition("=")[2]).split(",")
        return f"system calls are made by functions of libc: {' '.join(f'--trace libc:{each}' for each in calls)}"
    if _OF_KERNEL.fullmatch(text):
        return "the kernel's events are not here: give a line p, r or f, such as 'p:NAME LIBRARY:FUNCTION'"
    return ""


def of_definition(text: str) -> str:
    """The line for a probe as bpftrace writes it, such as uprobe:libz:deflate; "" for other texts."""
    found = _PROBE.match(text)
    if found is None:
        return ""
    place = found["place"].rpartition("/")[2].replace(".so:", ":")
    owner, colon, function = re.sub(r"\.so(\.\d+)*(?=:)", "", place).rpartition(":")
    return f"{_KINDS.get(found['kind'], 'p')}:NAME {owner}{colon}{function}"
