"""Flavours of function-entry stubs: how LLVM emits each, and its bytes.

String attributes on a function request a stub. They are added to the *printed* form of a module, in which LLVM writes every
definition on one line and every set of attributes in a group of its own.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection

STUB_SIZE = 5
SCHEME = "2"
"""Part of the key of cached objects: change it whenever the treatment of programs changes."""


class Flavour(enum.Enum):
    """The position of the stub in a function.

    FENTRY and PATCHABLE: before the first instruction (after endbr64, if there is one); the return address is on
    top of the stack. MCOUNT: after the prologue; the return address is at 8(%rbp). NONE: there is no stub.
    """

    FENTRY = "fentry"
    MCOUNT = "mcount"
    PATCHABLE = "patchable"
    NONE = "none"

    @classmethod
    def of(cls, name: str | Flavour) -> Flavour:
        """The flavour called `name`. Raises ValueError naming the ones there are."""
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(flavour.value for flavour in cls)
            raise ValueError(f"no stub flavour {name!r}; there are: {known}") from None


HOOKS = {"__fentry__": Flavour.FENTRY, "mcount": Flavour.MCOUNT}
"""The symbols that stubs call, and the flavour that each means."""

_ATTRIBUTES = {
    Flavour.FENTRY: '"fentry-call"="true"',
    Flavour.MCOUNT: '"frame-pointer"="all" "instrument-function-entry-inlined"="mcount"',
    Flavour.PATCHABLE: f'"patchable-function-entry"="{STUB_SIZE}"',
    Flavour.NONE: "",
}
_ANY_STUB = re.compile(
    r' ?"(?:fentry-call|patchable-function-(?:entry|prefix)|instrument-function-entry(?:-inlined)?)"="[^"]*"'
)

_STRING = r'"[^"]*"'
_PLAIN = rf'(?:[^()"]|{_STRING})'
_NESTED = rf"\((?:{_PLAIN}|\((?:{_PLAIN}|\((?:{_PLAIN}|\({_PLAIN}*\))*\))*\))*\)"
DEFINITION = re.compile(
    rf'^define (?P<head>(?:[^@"(\n]|{_STRING}|{_NESTED})*)'
    rf"@(?P<name>[-\w$.]+|{_STRING})"
    rf"(?P<parameters>{_NESTED})"
    r"(?P<address>(?: (?:local_)?unnamed_addr| addrspace\(\d+\))*)"
    r"(?P<group>(?: #\d+)?)(?P<rest>[^\n]*)$",
    re.MULTILINE,
)
"""The first line of a function definition in printed IR."""
_DEFINES = re.compile(r"^define ", re.MULTILINE)

_GROUP = re.compile(r"^attributes (#\d+) = \{ (.*) \}$", re.MULTILINE)


def attributes_of(flavour: Flavour) -> str:
    """The attributes, as IR writes them, that ask LLVM for a stub of `flavour`."""
    return _ATTRIBUTES[flavour]


def unquote(name: str) -> str:
    r"""The symbol of an IR name: without quotes, `\xx` decoded."""
    if not name.startswith('"'):
        return name
    return re.sub(r"\\([0-9A-Fa-f]{2})", lambda match: chr(int(match[1], 16)), name[1:-1])


def attribute_groups(ir: str) -> dict[str, str]:
    """The attribute groups of printed IR: `#0` -> the attributes in it."""
    return dict(_GROUP.findall(ir))


def with_stubs(ir: str, flavour: Flavour, notrace: Collection[str] = ()) -> str:
    """Printed IR `ir` with stubs of `flavour` requested on every definition that may have one.

    Definitions with the attribute `"notrace"`, or named in `notrace`, get none. Stubs that the text itself requests are
    dropped. Private functions become internal, so that every stub belongs to a symbol. All get unwind tables.

    Raises ValueError if `ir` has a definition that is not written as LLVM prints them.
    """
    ir = _ANY_STUB.sub("", ir).replace(" = { }\n", ' = { "stubless" }\n')  # a group must not be empty
    # A naked function has no prologue that a call of mcount could follow.
    unfit = re.compile(r'"notrace"|\bnaked\b' if flavour is Flavour.MCOUNT else '"notrace"')
    untraced = {group for group, attributes in attribute_groups(ir).items() if unfit.search(attributes)}
    wanted = _ATTRIBUTES[flavour]

    def marked(match: re.Match[str]) -> str:
        head = re.sub(r"^private ", "internal ", match["head"])
        exempt = match["group"].strip() in untraced or unquote(match["name"]) in notrace
        stub = f" {wanted}" if wanted and not exempt else ""
        parts = (match["name"], match["parameters"], match["address"], match["group"], " uwtable", stub, match["rest"])
        return f"define {head}@{''.join(parts)}"

    text, found = DEFINITION.subn(marked, ir)
    if found != len(_DEFINES.findall(ir)):
        unread = next(line for line in ir.splitlines() if line.startswith("define ") and not DEFINITION.match(line))
        raise ValueError(f"cannot read the definition {unread!r}")
    return text
