"""Assembly text: putting it together from blocks, adding call frame information. Text in, text out.

Call frame information is the stack's depth after every instruction.

A procedure of the text begins with `.cfi_startproc`, which means CFA = rsp + 8 with the return address below the CFA. A procedure
that is not entered by a call, or keeps a frame pointer, has directives of its own. Every instruction that moves rsp is followed
by its effect on the CFA; a label that only jumps lead to has the depth of those jumps, and labels that are reached at different
depths are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_AT_ENTRY = 8
_WORD = 8
_START, _END = ".cfi_startproc", ".cfi_endproc"
_PUSH = re.compile(r"push(?:q|fq)?\b")
_POP = re.compile(r"pop(?:q|fq)?\b")
_MOVED = re.compile(r"(?P<operation>add|sub)q? \$(?P<bytes>-?\d+), ?%rsp$")
_LEA = re.compile(r"lea (?P<bytes>-?\d+)\(%rsp\), ?%rsp$")
_JUMP = re.compile(r"j(?P<condition>[a-z]+) (?P<label>[\w.]+)$")
_LABEL = re.compile(r"^([\w.]+:)[ \t]+(?=\S)", re.MULTILINE)
_STATED = re.compile(r"\.cfi_def_cfa(?:_offset)? (?:%rsp, ?)?(?P<offset>\d+)$")
_FRAME_POINTER = ".cfi_def_cfa_register"
_ENDS = ("ret", "jmp", "ud2")


class DepthError(ValueError):
    """A label is reached with two depths of the stack."""


class _Depths:
    """The state of the stack while the text is read: the CFA less rsp here, and at the labels that jumps lead to."""

    def __init__(self) -> None:
        self.here: int | None = None
        """None: no instruction falls through to here, or the CFA is not based on rsp."""
        self._there: dict[str, int] = {}

    def jump(self, label: str) -> None:
        """A jump to `label` from here; backward ones to numbers lead where the depth is known already."""
        if self.here is None or (label[-1] == "b" and label[:-1].isdigit()):
            return
        self._agree(label[:-1] if label[:-1].isdigit() else label)

    def _agree(self, label: str) -> None:
        assert self.here is not None
        if self._there.setdefault(label, self.here) != self.here:
            raise DepthError(f"{label} is reached with the stack {self._there[label]} and {self.here} bytes deep")

    def arrive(self, label: str) -> bool:
        """Pass a label; whether only jumps lead here, whose depth is the one that counts from now on."""
        jumped_to = self.here is None and label in self._there
        if jumped_to:
            self.here = self._there[label]
        elif self.here is not None:
            self._agree(label)
        if label.isdigit():
            self._there.pop(label, None)
        return jumped_to


def with_call_frames(text: str) -> str:
    """`text` (AT&T syntax, one instruction to a line) with the directives that it leaves out.

    Raises DepthError for a label that is reached with different depths of the stack.
    """
    depths, lines, open_procedure = _Depths(), list[str](), False
    for line in _apart(text):
        if open_procedure and line.strip().startswith(".globl"):
            lines.append(f"    {_END}")
            open_procedure = False
        lines.append(line)
        open_procedure = open_procedure or line.strip() == _START
        if open_procedure:
            lines += _after(line.partition("#")[0].strip(), depths)
    return "\n".join([*lines, f"    {_END}"] if open_procedure else lines) + "\n"


def _apart(text: str) -> list[str]:
    """The lines of the text, with labels on lines of their own."""
    return _LABEL.sub(r"\1\n    ", text).splitlines()


def _after(code: str, depths: _Depths) -> list[str]:
    """The directives that follow one line of the text."""
    if code.endswith(":"):
        return [f"    .cfi_def_cfa_offset {depths.here}"] if depths.arrive(code[:-1]) else []
    if code.startswith(".cfi"):
        _state(code, depths)
        return []
    moved = _moved_by(code)
    if moved and depths.here is not None:
        depths.here += moved
        return [f"    .cfi_adjust_cfa_offset {moved}"]
    _transfer(code, depths)
    return []


def _state(directive: str, depths: _Depths) -> None:
    """The text says itself where the CFA is."""
    if directive == _START:
        depths.here = _AT_ENTRY
    elif directive.startswith(_FRAME_POINTER):
        depths.here = None
    elif found := _STATED.match(directive):
        depths.here = int(found["offset"])


def _moved_by(code: str) -> int:
    """By how many bytes an instruction makes the stack deeper."""
    if _PUSH.match(code):
        return _WORD
    if _POP.match(code):
        return -_WORD
    if found := _MOVED.match(code):
        return int(found["bytes"]) * (1 if found["operation"] == "sub" else -1)
    if found := _LEA.match(code):
        return -int(found["bytes"])
    return 0


def _transfer(code: str, depths: _Depths) -> None:
    if found := _JUMP.match(code):
        depths.jump(found["label"])
    if code.split(" ")[0] in _ENDS:
        depths.here = None


def with_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """Put blocks in, leaving `$$` and the names of constants, which are capitals, for the last step."""
    for name, block in blocks.items():
        text = re.sub(rf"\${name}\b", block.replace("\\", r"\\"), text)
    return text
