"""Transcripts: their steps, and what may differ (FORMAT.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import groupby

NO_NEWLINE = "\\ no newline at end"


@dataclass
class Step:
    """A command and what came of it: failures (`! ...`) and lines of output."""

    command: str
    failures: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)


def parse(text: str) -> list[Step]:
    """The steps of a transcript."""
    steps: list[Step] = []
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("$ "):
            steps.append(Step(line[2:]))
        elif not steps:
            continue  # the head
        elif line.startswith("> ") and _is_open(steps[-1]):
            steps[-1].command += "\n" + line[2:]
        elif _FAILURE.fullmatch(line):
            steps[-1].failures.append(line[2:])
        elif cut := _CUT.fullmatch(line):
            # The output before it did not end with a newline.
            steps[-1].output.append(cut[1])
            steps.append(Step(cut[2]))
        else:
            steps[-1].output.append(line)
    return steps


_FAILURE = re.compile(r"! (?:(?:open: )?E[A-Z0-9]+|exit \d+|short \d+/\d+)")
_CUT = re.compile(r"(.*)\$ ((?:cat|echo|wc|head|tail|dd|ls|sh|hit|grep) .*)")


def _is_open(step: Step) -> bool:
    """Whether the text of an echo goes on."""
    return step.command.startswith("echo ") and not ECHO.fullmatch(step.command) and not step.output


ECHO = re.compile(r"echo (-n )?'(.*)' (>>?) (\S+)( +# strictly one write\(2\))?", re.DOTALL)
"""`echo [-n] 'TEXT' > FILE`, with the text taken as it is."""

_HEX = r"0x[0-9a-f]+"
_NORMAL = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r" \[kernel\]", ""),
        (r"  kernel (?=\[|$)", "    "),
        (r"^\[ *\d+\.\d{6}\]", "[TIME]"),
        (r"\( *\d+\) (?=\[\d{3}\] )", "(TGID) "),
        (
            r"^ *(\S.*)-\d+ +((?:\(TGID\)|\(-{7}\)) )?\[\d{3}\] (?:[^ ]{5} )? *\d+\.\d{6}: ",
            r"\1-PID \2[CPU] FLAGS TIME: ",
        ),
        (r"^.+-PID (?=(?:\S+ )?\[CPU\] FLAGS TIME: (?:tracing_mark_write\b|# [0-9a-f]+ buf:))", "TASK-PID "),
        (r"#P:\d+", "#P:N"),
        (r"^ID: \d+$", "ID: N"),
        (rf"\+{_HEX}/{_HEX}", "+OFF/SIZE"),
        (r"(?<![\w.])[0-9a-f]{16}(?![\w.])", "ADDR"),
        (r"0x[0-9a-f]{12,16}", "ADDR"),
        (r"^[0-9a-f]{12} ", "ADDR "),
        (r"\b[A-Z][a-z]{2} [ \d]\d +\d\d:\d\d\b", "DATE"),
        (r" ?[ $@*#!+] +\d[\d.]* us +\|", " N us |"),
        (r"\d+\.\d+ us", "N us"),
        (r"^( *\d+\.\d{6} \| )? *\d+\) ", " N) "),
        (r"^( N\))? +(\S+)-\d+ +\| ", r"\1 \2-PID | "),
        (r"^ N\) +(\S+)-\d+ +=> +(\S+)-\d+ +$", r" N) \1-PID => \2-PID"),
        (r"^ *(\S+)-\d+ +\d[^ ]{5} +-?\d+us[ $@*#!+]: ", r"\1-PID N..... Nus: "),
        (r"\b(blk|mmiotrace) (?=[\w ]*\bnop$)", ""),
        (r"latency trace v1\.1\.5 on \S+", "latency trace v1.1.5 on RELEASE"),
        (r"^\d+ \d+ \d+ type: \d+$", "PID CPU TIME type: N"),
        (r"^[0-9a-f]{8} [0-9a-f]{8} ADDR type: \d+$", "PID CPU TIME type: N"),
        (r"ADDR \(-?\d+\)", "ADDR (N)"),
        (r'(?<==)""(?=[ ,}]|$)', "(fault)"),  # an empty string that the kernel has read from user memory
    )
]


def normalised(line: str) -> str:
    """The line without what FORMAT.md allows to differ."""
    for pattern, replacement in _NORMAL:
        line = pattern.sub(replacement, line)
    return line


_OPTION = r"(?:blk_\w+|graph-time|funcgraph-retval(?:-hex)?|func(?:graph)?-args)"
"""Options that one kernel has and another has not."""
_OPTIONAL = re.compile(_OPTION)
_SETS_OPTIONAL = re.compile(rf"echo (-n )?'(no)?{_OPTION}' > trace_options")


def outcome(step: Step) -> list[str]:
    """Failures and output of a step, without what may differ."""
    if _SETS_OPTIONAL.fullmatch(step.command):
        return []
    lines = [normalised(line) for line in step.output]
    if step.command.endswith(" options"):
        lines = [line for line in lines if not _OPTIONAL.fullmatch(line)]
    if step.command.endswith("/id"):
        lines = ["ID" if line.isdigit() else line for line in lines]
    if step.command.endswith("kprobes/list"):
        lines.sort()  # the kernel's order follows a hash of the address
    if step.command.endswith("cat set_ftrace_filter"):
        lines = [line for _, group in groupby(lines, _command_of) for line in sorted(group)]  # likewise
    return [f"! {failure}" for failure in step.failures] + lines


def _command_of(line: str) -> object:
    """What the lines of a function command have in common, whatever the function and the rest of its count."""
    _, colon, command = line.partition(":")
    return (command.rpartition(":")[0], "count=" in command) if colon else line


def differs(expected: Step, got: Step) -> bool:
    """Whether two outcomes of a step are not the same."""
    return outcome(expected) != outcome(got)
