"""The target functions: from the text that describes them to LLVM IR with one block of assembly."""

from __future__ import annotations

import re
from dataclasses import dataclass

RETURN = "call"
"""Label of the return address in the routine that makes calls."""
_WORD = r"(?<![\w%$.]){}(?![\w.])"
_DATA = {"VAR": "scn_var", "LEAFPTR": "scn_leafptr", "CALLBACK": "scn_callback"}

# scn_call(function, arguments, sp): function(eight words) with ax = 0; *sp is the stack pointer just before the call.
_SUPPORT = f"""
    .byte 0xcc
    .p2align 4, 0xcc
    .globl scn_call
    .type scn_call,@function
scn_call:
    push %rbp
    mov %rsp, %rbp
    push %rbx
    push %rax
    push 56(%rsi)
    push 48(%rsi)
    mov %rsp, (%rdx)
    mov %rdi, %r11
    mov (%rsi), %rdi
    mov 16(%rsi), %rdx
    mov 24(%rsi), %rcx
    mov 32(%rsi), %r8
    mov 40(%rsi), %r9
    mov 8(%rsi), %rsi
    xor %eax, %eax
    call *%r11
.L{RETURN}:
    mov -8(%rbp), %rbx
    leave
    ret
    .size scn_call, .-scn_call
    .globl scn_callback
    .type scn_callback,@function
scn_callback:
    jmp *scn_callback_pointer(%rip)
    .size scn_callback, .-scn_callback
    .data
    .p2align 3
    .globl scn_var
    .type scn_var,@object
    .size scn_var, 8
scn_var:
    .quad 23130
scn_leafptr:
    .quad scn_leaf
    .globl scn_callback_pointer
    .type scn_callback_pointer,@object
    .size scn_callback_pointer, 8
scn_callback_pointer:
    .quad 0
    .globl scn_labels
    .type scn_labels,@object
scn_labels:
"""


@dataclass(frozen=True)
class Target:
    """A function: what stands at its start, then labels (`name:`) and instructions."""

    name: str
    start: tuple[str, ...]
    body: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Its labels in the order of their lines, without the numbered ones."""
        stub = ("site", "body") if "stub" in self.start else ()
        named = (line[:-1] for line in self.body if line.endswith(":") and not line[:-1].isdigit())
        return (*stub, *named)

    def local(self, label: str) -> str:
        """The name of a label in the assembly."""
        return f".L{self.name}.{label}"


def parse_targets(text: str) -> tuple[Target, ...]:
    """The functions that a description defines. Raises ValueError naming a line that stands outside of them."""
    found: list[Target] = []
    name: str | None = None
    start: tuple[str, ...] = ()
    body: list[str] = []
    for raw in text.splitlines():
        words = raw.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] == "func":
            name, start, body = words[1], tuple(words[2:]), []
        elif name is None:
            raise ValueError(f"{raw!r} stands outside of a function")
        elif words == ["end"]:
            found.append(Target(name, start, tuple(body)))
            name = None
        else:
            body.append(raw.strip())
    return tuple(found)


def label_table(targets: tuple[Target, ...]) -> list[tuple[str, str]]:
    """What the words at `scn_labels` are: (function, label), '' for the function itself, 'end' behind its last byte."""
    table = [(target.name, label) for target in targets for label in ("", *target.labels, "end")]
    return [*table, ("", RETURN)]


def module_ir(targets: tuple[Target, ...]) -> str:
    """LLVM IR of a module with these functions, in this order, and the routine that calls them."""
    table = [f"    .quad .L{name}{'.' + label if name else label}" for name, label in label_table(targets)]
    text = [".text", *(line for target in targets for line in _function(target)), *_SUPPORT.splitlines(), *table]
    text += [f".size scn_labels, {8 * len(table)}"]
    return "\n".join(f'module asm "{_escaped(line)}"' for line in text) + "\n"


def _escaped(line: str) -> str:
    return line.replace("\\", "\\5C").replace('"', "\\22")


def _function(target: Target) -> list[str]:
    name = target.name
    head = ["    .byte 0xcc", "    .p2align 4, 0xcc", f"    .globl {name}", f"    .type {name},@function"]
    head += [f"{name}:", f"{target.local('')}:"]
    if "endbr64" in target.start:
        head.append("    endbr64")
    if "stub" in target.start:
        head += [f"{target.local('site')}:", "    call __fentry__", f"{target.local('body')}:"]
    lines = [_line(target, line) for line in target.body]
    return [*head, *lines, f"{target.local('end')}:", f"    .size {name}, .-{name}"]


def _line(target: Target, line: str) -> str:
    """A line with its labels made local to the function, and the names of data replaced."""
    if line.endswith(":"):
        return line if line[:-1].isdigit() else f"{target.local(line[:-1])}:"
    mnemonic, _, operands = line.partition(" ")
    for label in target.labels:
        operands = re.sub(_WORD.format(re.escape(label)), target.local(label), operands)
    for name, symbol in _DATA.items():
        operands = re.sub(_WORD.format(name), symbol, operands)
    return f"    {mnemonic} {operands}"
