"""Signatures read from the definitions of printed LLVM IR."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sandbox.stubs import DEFINITION, unquote
from sandbox.types import Array, Floating, Integer, Parameter, Pointer, Record, Signature, Type, Void

_TOKEN = re.compile(r'\s*(\.\.\.|%(?:[-\w$.]+|"[^"]*")|"[^"]*"|<\{|\}>|[-\w$.]+|[(){}\[\]<>,*=#@!])', re.ASCII)
_FLOATING = {"half", "bfloat", "float", "double", "x86_fp80", "fp128"}
_INTEGER = re.compile(r"i(\d+)")
_TYPE_DEFINITION = re.compile(r'^(%(?:[-\w$.]+|"[^"]*")) = type (.*)$', re.MULTILINE)
_CONVENTIONS = re.compile(r"\b(\w+cc|cc ?\d+|intel_ocl_bicc|x86_\w+cc|\w+_cc)\b")
_TYPED_ATTRIBUTES = {"byval", "sret", "byref", "inalloca", "preallocated", "elementtype"}


def definition_lines(ir: str) -> dict[str, str]:
    """Function name -> the line that defines it, of printed IR."""
    return {unquote(match["name"]): match[0] for match in DEFINITION.finditer(ir)}


def type_definitions(ir: str) -> dict[str, str]:
    """Name of a struct type, with its `%` -> its body, of printed IR."""
    return dict(_TYPE_DEFINITION.findall(ir))


def signature(line: str, types: Mapping[str, str]) -> Signature:
    """The signature of the function that `line` defines; `types` as from `type_definitions`.

    Raises ValueError if the line is not a definition.
    """
    match = DEFINITION.match(line)
    if not match:
        raise ValueError(f"not a function definition: {line!r}")
    head, convention = _without_convention(match["head"])
    parameters, variadic = _Parser(match["parameters"], types).parameters()
    name = unquote(match["name"])
    return Signature(name, _return_type(head, types), parameters, variadic, convention)


def _without_convention(head: str) -> tuple[str, str]:
    found = _CONVENTIONS.search(re.sub(r'"[^"]*"', lambda quoted: " " * len(quoted[0]), head))
    if not found:
        return head, ""
    convention = found[1]
    return head.replace(convention, " ", 1), "" if convention == "ccc" else convention


def _return_type(head: str, types: Mapping[str, str]) -> Type:
    """The type at the end of what stands before the name: linkage, visibility and attributes come first."""
    parser = _Parser(head, types)
    while True:
        start = parser.position
        try:
            kind = parser.type()
            if parser.at_end():
                return kind
        except ValueError:
            pass
        parser.position = start
        parser.skip_attribute()


class _Parser:
    def __init__(self, text: str, types: Mapping[str, str]) -> None:
        self.tokens = [token for token in _TOKEN.findall(text) if token]
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
        if name not in self.types:
            raise ValueError(f"unknown type {name} in {self.text!r}")
        body = self.types[name]
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
        by_value: Type | None = None
        while self.peek() not in (",", ")") and not self.peek().startswith("%"):
            attribute = self.peek()
            attributes.append(attribute)
            if attribute == "byval":
                self.next()
                self.expect("(")
                by_value = self.type()
                self.expect(")")
            else:
                self.skip_attribute()
        name = unquote(self.next()[1:]) if self.peek().startswith("%") else ""
        return Parameter(kind, "" if name.isdigit() else name, tuple(attributes), by_value)

    def skip_attribute(self) -> None:
        """Pass over `noundef`, `align 8`, `"key"="value"`, `dereferenceable(8)`, `range(i8 0, 2)`, `sret(%T)`."""
        attribute = self.next()
        if self.accept("=") or (attribute == "align" and self.peek().isdigit()):
            self.next()
        elif self.accept("("):
            depth = 1
            while depth:
                depth += {"(": 1, ")": -1}.get(self.next(), 0)
