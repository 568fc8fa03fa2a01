"""Signatures and attributes of functions, from printed LLVM IR.

Only the lines that define functions, types and groups of attributes are kept ("declarations"); they are short, can be
cached beside the object, and are parsed at first use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sandbox.abi.signatures import Array, Floating, Integer, Parameter, Pointer, Record, Signature, Type, Void
from sandbox.compile.stubs import DEFINITION, attribute_groups, unquote
from sandbox.process.once import cached_property

_TOKEN = re.compile(r'\s*(\.\.\.|%(?:[-\w$.]+|"[^"]*")|"[^"]*"|<\{|\}>|[-\w$.]+|[(){}\[\]<>,*=#@!])', re.ASCII)
_FLOATING = {"half", "bfloat", "float", "double", "x86_fp80", "fp128"}
_INTEGER = re.compile(r"i(\d+)")
_TYPE_DEFINITION = re.compile(r'^(%(?:[-\w$.]+|"[^"]*")) = type (.*)$', re.MULTILINE)
_CONVENTION = re.compile(r"(?<![-\w$.%@])(?:\w+cc|cc ?\d+|\w+_cc|intel_ocl_bicc)(?![-\w$.])")
_QUOTED = re.compile(r'"[^"]*"')
_ALIAS = re.compile(r'^@([-\w$.]+|"[^"]*") = [^"]*\balias .*, ptr @([-\w$.]+|"[^"]*")', re.MULTILINE)
_NEST = re.compile(r"(?<![-\w$.%])nest(?![-\w$.])")
_SUSPECT = re.compile(r"nest|cc\b|cc ?\d|_bicc")
_SCRATCH_FREE = {"", "fastcc", "x86_64_sysvcc", "cc 78"}


def declarations(ir: str) -> str:
    """The lines of printed IR that define functions, aliases of functions, types and attribute groups."""
    starts = ("define ", "%", "attributes #")
    return "\n".join(line for line in ir.splitlines() if line.startswith(starts) or _ALIAS.match(line))


class IrInterface:
    """Answers questions about functions from `declarations`."""

    def __init__(self, declared: str) -> None:
        self._declared = declared

    @cached_property
    def _types(self) -> dict[str, str]:
        return dict(_TYPE_DEFINITION.findall(self._declared))

    @cached_property
    def _definitions(self) -> dict[str, re.Match[str]]:
        defined = {unquote(match["name"]): match for match in DEFINITION.finditer(self._declared)}
        aliases = {unquote(name): defined.get(unquote(target)) for name, target in _ALIAS.findall(self._declared)}
        return defined | {name: match for name, match in aliases.items() if match}

    @cached_property
    def _groups(self) -> dict[str, frozenset[str]]:
        groups = attribute_groups(self._declared).items()
        return {name: frozenset(word.strip('"') for word in attributes.split()) for name, attributes in groups}

    def signature(self, name: str) -> Signature | None:
        """The signature of function `name`; None if it is not defined here."""
        match = self._definitions.get(name)
        return signature(match, self._types) if match else None

    def functions_with(self, attribute: str) -> frozenset[str]:
        """Names of the functions that carry the LLVM attribute, such as `returns_twice` or `noinline`."""
        groups = {name for name, attributes in self._groups.items() if attribute in attributes}
        if not groups:
            return frozenset()
        return frozenset(name for name, match in self._definitions.items() if match["group"].strip() in groups)

    scratch_kept = False
    """LLVM's allocation of registers across functions (-enable-ipra) is off."""

    reads_frame = False
    """As in the kernel, a function in IR that asks for its return address may get that of a trampoline."""

    @cached_property
    def scratch_taken(self) -> frozenset[str]:
        """Names of the functions at whose entry r10 or r11 may hold something."""
        suspects = (line for line in self._declared.splitlines() if _SUSPECT.search(line))
        matches = filter(None, map(DEFINITION.match, suspects))
        taken = frozenset(unquote(match["name"]) for match in matches if _takes_scratch(match))
        return taken | self.functions_with("split-stack")


def _takes_scratch(match: re.Match[str]) -> bool:
    convention = _without_convention(match["head"])[1]
    return convention not in _SCRATCH_FREE or bool(_NEST.search(_QUOTED.sub("", match["parameters"])))


def signature(match: re.Match[str], types: Mapping[str, str]) -> Signature:
    """The signature in a match of `stubs.DEFINITION`; `types`: a named type, with its `%` -> its body.

    Raises ValueError if a type is not known.
    """
    head, convention = _without_convention(match["head"])
    parameters, variadic = _Parser(match["parameters"], types).parameters()
    return Signature(unquote(match["name"]), _return_type(head, types), parameters, variadic, convention)


def _without_convention(head: str) -> tuple[str, str]:
    found = _CONVENTION.search(_QUOTED.sub(lambda quoted: " " * len(quoted[0]), head))
    if not found:
        return head, ""
    convention = head[found.start() : found.end()]
    return head[: found.start()] + head[found.end() :], "" if convention == "ccc" else convention


def _return_type(head: str, types: Mapping[str, str]) -> Type:
    """The type at the end of the text before the name, after linkage, visibility and attributes."""
    parser = _Parser(head, types)
    while not parser.at_end():
        start = parser.position
        try:
            kind = parser.type()
            if parser.at_end():
                return kind
        except ValueError:
            pass
        parser.position = start
        parser.skip_attribute()
    raise ValueError(f"no return type in {head!r}")


class _Parser:
    def __init__(self, text: str, types: Mapping[str, str]) -> None:
        self.tokens: list[str] = _TOKEN.findall(text)
        self.types = types
        self.text = text
        self.position = 0

    def at_end(self) -> bool:
        return self.position >= len(self.tokens)

    def peek(self) -> str:
        return "" if self.at_end() else self.tokens[self.position]

    def next(self) -> str:
        token = self.peek()
        if not token:
            raise ValueError(f"unexpected end of {self.text!r}")
        self.position += 1
        return token

    def accept(self, token: str) -> bool:
        found = self.peek() == token
        self.position += found
        return found

    def expect(self, token: str) -> None:
        found = self.next()
        if found != token:
            raise ValueError(f"expected {token!r}, found {found!r} in {self.text!r}")

    def type(self) -> Type:
        token = self.next()
        if token == "void":
            return Void()
        if token in _FLOATING:
            return Floating(token)
        if integer := _INTEGER.fullmatch(token):
            return Integer(int(integer[1]))
        if token == "ptr":
            return self.pointer()
        if token.startswith("%"):
            return self.named(token)
        if token in ("{", "<{"):
            return self.record("}" if token == "{" else "}>")
        if token in ("[", "<"):
            return self.sequence("]" if token == "[" else ">")
        raise ValueError(f"no type: {token!r} in {self.text!r}")

    def pointer(self) -> Type:
        if self.accept("addrspace"):
            for _ in range(3):
                self.next()
        return Pointer()

    def named(self, name: str) -> Type:
        body = self.types.get(name)
        if body is None:
            raise ValueError(f"unknown type {name} in {self.text!r}")
        if body == "opaque":
            return Record((), name)
        inner = _Parser(body, self.types).type()
        return Record(inner.fields, name, inner.packed) if isinstance(inner, Record) else inner

    def record(self, closing: str) -> Type:
        fields: list[tuple[str, Type]] = []
        while not self.accept(closing):
            fields.append((f"_{len(fields)}", self.type()))
            self.accept(",")
        return Record(tuple(fields), packed=closing == "}>")

    def sequence(self, closing: str) -> Type:
        count = int(self.next())
        self.expect("x")
        element = self.type()
        self.expect(closing)
        return Array(element, count, closing == ">")

    def parameters(self) -> tuple[tuple[Parameter, ...], bool]:
        self.expect("(")
        found: list[Parameter] = []
        while not self.accept(")"):
            if self.accept("..."):
                self.expect(")")
                return tuple(found), True
            found.append(self.parameter())
            self.accept(",")
        return tuple(found), False

    def parameter(self) -> Parameter:
        kind = self.type()
        attributes: list[str] = []
        targets: dict[str, Type] = {}
        while self.peek() not in (",", ")") and not self.peek().startswith("%"):
            start = self.position
            if self.peek() in ("byval", "sret"):
                attribute = self.next()
                targets[attribute] = self.target()
            else:
                self.skip_attribute()
            attributes.append(" ".join(self.tokens[start : self.position]))
        name = unquote(self.next()[1:]) if self.peek().startswith("%") else ""
        name = "" if name.isdigit() else name
        return Parameter(kind, name, tuple(attributes), targets.get("byval"), targets.get("sret"))

    def target(self) -> Type:
        self.expect("(")
        kind = self.type()
        self.expect(")")
        return kind

    def skip_attribute(self) -> None:
        """Pass over `noundef`, `align 8`, `"key"="value"`, `dereferenceable(8)`, `range(i8 0, 2)`, `sret(%T)`."""
        attribute = self.next()
        if self.accept("=") or (attribute == "align" and self.peek().isdigit()):
            self.next()
        elif self.accept("("):
            depth = 1
            while depth:
                depth += {"(": 1, ")": -1}.get(self.next(), 0)
