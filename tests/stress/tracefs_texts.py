"""Texts that people write to files of tracefs, well formed or nearly so."""

from __future__ import annotations

from random import Random

FUNCTIONS = (
    "__sys_listen",
    "__sys_bind",
    "__sys_socketpair",
    "do_sys_open",
    "__x64_sys_listen",
    "__sys_*",
    "kfree",
    "nosuch",
)
_HEADS = (
    "p:fz/{}",
    "r:fz/{}",
    "f:fz/{}",
    "p:fz/{}",
    "r:{}",
    "p",
    "r",
    "f",
    "r4:fz/{}",
    "t:{}",
    "e:{}",
    "-:fz/{}",
    "!p:{}",
)
_PLACES = ("{}", "{}", "{}", "{}", "{}", "{}", "{}+4", "{}%return", "kernel:{}", "0x10", "nosuch:{}", "")
_SOURCES = (
    "%di",
    "%si",
    "%di",
    "%dx",
    "$arg1",
    "$arg2",
    "$stack",
    "$stack2",
    "$retval",
    "$comm",
    "@0x10000018",
    "\\7",
    '\\"text"',
    "$arg*",
    "%zz",
)
_TYPES = (
    "",
    ":u8",
    ":s32",
    ":x64",
    ":string",
    ":ustring",
    ":symbol",
    ":symstr",
    ":char[4]",
    ":u16[3]",
    ":b4@4/32",
    ":x9",
    ":string[2]",
)
_OPERATORS = ("==", "!=", "<", ">=", "&", "~", "=", "&&")
_VALUES = ("0", "1", "-1", "0x10", "4096", '"a*"', '"hit"', "99999999999999999999", "CPUS{0}", "")
_MODIFIERS = (
    "",
    "",
    ".hex",
    ".sym",
    ".sym-offset",
    ".log2",
    ".buckets=3",
    ".execname",
    ".syscall",
    ".usecs",
    ".percent",
    ".graph",
    ".no",
)
_COMMANDS = ("traceon", "traceoff", "snapshot", "stacktrace", "enable_event", "disable_event", "nosuch")
_TRACERS = ("nop", "function", "function_graph", "blk", "")
_GLOBS = (*FUNCTIONS, "*", "__sys_*", "*listen", "!*", "!__sys_bind", "[a-c]*", "*]", ":mod:kernel", "")
_FUNCTION_COMMANDS = (
    "traceon",
    "traceoff",
    "snapshot",
    "dump",
    "stacktrace",
    "enable_event:fz:a",
    "disable_event:fz:b:2",
    "nosuch",
)
EVENTS = ("a", "b", "c", "sa", "sb")
_FIELDS = (
    "a1",
    "a2",
    "arg1",
    "__probe_ip",
    "__probe_func",
    "common_pid",
    "hitcount",
    "common_timestamp",
    "COMM",
    "cpu",
    "x",
    "common_stacktrace",
)


class Texts:
    """Random texts by kind; the same seed gives the same ones."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._one = random.choice

    def _some(self, *most: int) -> range:
        return range(self._random.randint(*most))

    def definition(self) -> str:
        """A line of dynamic_events."""
        arguments = [self._argument(number) for number in self._some(0, 4)]
        head, place = self._one(_HEADS).format(self._one(EVENTS)), self._one(_PLACES).format(self._one(FUNCTIONS))
        return " ".join([head, place, *arguments])

    def _argument(self, number: int) -> str:
        source = self._one(_SOURCES)
        for _ in self._some(0, 2):
            source = f"{self._one(('+', '-', '+u'))}{self._one((0, 8, 16, 4096))}({source})"
        return self._one((f"a{number}=", f"a{number}=", "", "common_pid=")) + source + self._one(_TYPES)

    def synthetic(self) -> str:
        """A line of synthetic_events."""
        fields = "; ".join(
            f"{self._one(('u64', 's32', 'char x[16]', 'char[]', 'pid_t', 'nosuch'))} f{n}" for n in self._some(0, 3)
        )
        return f"{self._one(('', '', '!'))}{self._one(('sa', 'sb'))} {fields}"

    def filter(self) -> str:
        """A filter."""
        tests = [f"{self._one(_FIELDS)} {self._one(_OPERATORS)} {self._one(_VALUES)}" for _ in self._some(1, 3)]
        text = self._one((" && ", " || ")).join(tests)
        return self._one((text, f"!({text})", f"({text}", "0", ""))

    def trigger(self) -> str:
        """A trigger."""
        if self._random.random() < 0.5:
            event = f":fz:{self._one(EVENTS)}" if self._random.random() < 0.6 else ""
            text = self._one(_COMMANDS) + event + self._one(("", ":2", ":-1", ":x"))
        else:
            text = self._hist()
        condition = f" if {self.filter()}" if self._random.random() < 0.3 else ""
        return self._one(("", "", "!")) + text + condition

    def _hist(self) -> str:
        keys = ",".join(self._one(_FIELDS) + self._one(_MODIFIERS) for _ in self._some(1, 2))
        parts = ["hist", f"keys={keys}"]
        variable = f"$v{self._random.randint(0, 2)}"
        options = (
            f"vals={self._one(_FIELDS)}", f"sort={self._one(_FIELDS)}{self._one(('', '.descending', '.up'))}",
            f"size={self._one((16, 100, 2048, 1, 0))}", "pause", "cont", "clear", "nohitcount", f"name={self._one(('n', 'm'))}",
            f"{variable[1:]}={self._one(_FIELDS)}", f"w={variable}+1", f"d=common_timestamp.usecs-{variable}",
            f"onmatch(fz.{self._one(EVENTS)}).trace({self._one(('sa', 'sb'))},$v0)",
            f"onmatch(fz.{self._one(EVENTS)}).sa($v1)", f"onmax({variable}).save({self._one(_FIELDS)})",
            "onmax($v0).snapshot()", "onchange($v1).save(a1)",
        )  # fmt: skip
        return ":".join([*parts, *(self._one(options) for _ in self._some(0, 3))])

    def globs(self) -> str:
        """What set_ftrace_filter takes."""
        one = self._one(_GLOBS)
        return f"{one}:{self._one(_FUNCTION_COMMANDS)}{self._one(('', ':3'))}" if self._random.random() < 0.3 else one

    def tracer(self) -> str:
        """The name of a tracer."""
        return self._one(_TRACERS)

    def number(self) -> str:
        """A number in text."""
        return str(self._one((0, 1, 1, 2, 3, 7, 16, 100, -1, "x", "", "0x3", 1 << 40)))

    def mutated(self, text: str) -> str:
        """The text with some characters changed."""
        for _ in self._some(1, 3):
            at = self._random.randint(0, len(text))
            piece = "".join(self._one('+-u()@$%:[]/.*#\\"=!~<>&| \t\n\x000x8aé') for _ in self._some(0, 3))
            text = text[:at] + piece + text[at + self._random.randint(0, 2) :]
        return text
