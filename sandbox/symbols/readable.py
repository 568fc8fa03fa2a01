"""Names of functions as people read and write them: short forms of demangled names, and patterns for these.

`std::vector<int>::push_back(int const&)` is `std::vector::push_back`: without the arguments of templates, parameters and types
of results. Qualifiers that distinguish overloads stay: `Box::get() const`.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from sandbox.process.printable import printable
from sandbox.symbols.demangling import MANGLED, demangled

_OPERATOR = re.compile(
    r"operator(?:\(\)|\[\]|<=>|->\*|<<=|>>=|->|<<|>>|&&|\|\||\+\+|--|[-+*/%^&|<>=!]=|[-+*/%^&|<>=!~,]"
    r"| (?:new|delete)(?:\[\])?|\"\" ?\w+| co_await)"
)
_CONVERSION = "operator "
_PLAIN = re.compile(r"(?:(?!operator(?!\w))\w+|[:~$.@*&,]+)+")
_ANONYMOUS = "(anonymous namespace)"
_QUALIFIERS = re.compile(r"(?: const)?(?: volatile)?(?: ?&&?)?(?: noexcept)?")
_CLONES = re.compile(r"(?: \[clone [^\]]*\])*(?:@[\w.]+)?$")
_THUNK = re.compile(r"(?:(?:non-virtual|virtual|covariant return) thunk to |transaction clone for |[a-z][a-z -]* for )")
_TAG = re.compile(r"\[abi:\w+\]")
_INNERMOST = re.compile(r"<[^<>()]*>|\([^<>()]*\)")
_ANGLES = re.compile(r"(?:::)?<[^<>]*>")
_SIMPLE = re.compile(r"[\w:~]+")
_END = re.compile(r"(?: const)?(?: volatile)?(?: ?&&?)?(?: noexcept)?$")
_SPECIAL = ("operator", "{", "[", "@", "->", "(anonymous", " for ", " to ", "decltype", "'", "::<")
"""What a name of a simple form does not have."""
_FACE = re.compile(r"\)((?: const)?(?: volatile)?(?: ?&&?)?(?: noexcept)?(?: \[clone [^\]]*\])*(?:@[\w.]+)?)$")

_full = False


def use_full_names(full: bool = True) -> None:
    """Whether `readable` gives full names from now on."""
    global _full
    _full = full


def readable(symbol: str) -> str:
    """The name of a function for people: of C++ and Rust the demangled one, shortened unless full names are wanted.

    What cannot be printed is escaped.
    """
    shown = (demangled(symbol) if _full else _shortened(symbol)) if symbol.startswith(MANGLED) else ""
    return printable(shown or symbol)


def called(name: str, arguments: str, mark: Callable[[str], str] = str) -> str:
    """A call in the words of a source: `get(this=0x1) const` of `get() const`. Parameters of a full name are replaced.

    `mark`: makes the function's name stand out.
    """
    if (found := _FACE.search(name)) is None:
        return f"{mark(name)}({arguments})"
    start = _opening(name, found.start())
    if name.endswith("operator", 0, start):
        start = found.start() + 1  # these are its name, and it has no list of parameters here
    return f"{mark(name[:start])}({arguments}){found[1]}"


@functools.lru_cache(maxsize=65536)
def _shortened(symbol: str) -> str:
    return short(demangled(symbol))


def short(full: str, *, with_templates: bool = False) -> str:
    """The short form of a demangled name; `with_templates`: with the arguments of templates. '' for ''."""
    written, ending = _parts(full, with_templates)
    return f"{written}(){ending}" if ending.startswith((" const", " volatile", " &", "&")) else written + ending


def _bare(full: str, *, with_templates: bool = False) -> str:
    """The short form without qualifiers: what patterns without parentheses mean."""
    written, ending = _parts(full, with_templates)
    clones = _CLONES.search(ending)
    return written + (clones[0] if clones else "")


def _parts(full: str, with_templates: bool) -> tuple[str, str]:
    """The name, and what follows its parameters."""
    if with_templates or full.startswith("<") or any(special in full for special in _SPECIAL):
        return _Scan(full, with_templates).name()
    before, text = "", full
    while text != before:
        before, text = text, _INNERMOST.sub("", text)
    end = _END.search(text)
    at = end.start() if end else len(text)
    name = text[:at].rpartition(" ")[2].lstrip("*&")
    return (name, text[at:]) if _SIMPLE.fullmatch(name) else _Scan(full, with_templates).name()


class _Scan:
    """Reads a demangled name from left to right."""

    def __init__(self, text: str, with_templates: bool) -> None:
        clones = _CLONES.search(text)
        assert clones is not None
        self._text, self._clones = text[: clones.start()], clones[0]
        self._with_templates = with_templates
        self._at = 0
        self._parts: list[str] = []
        self._ending = ""

    def name(self) -> tuple[str, str]:
        """The name, and what follows its parameters. A name of a form that is not known is left as it is."""
        thunk = _THUNK.match(self._text)
        front = thunk[0] if thunk else ""
        self._at = len(front)
        try:
            while self._at < len(self._text):
                self._step()
        except ValueError:
            return self._text, self._clones
        last = max((place for place, part in enumerate(self._parts) if part == " "), default=-1)
        written = "".join(self._parts[last + 1 :]).lstrip("*&")
        return (f"{front}{written}", f"{self._ending}{self._clones}") if written else (self._text, self._clones)

    def _step(self) -> None:
        text, at = self._text, self._at
        character = text[at]
        is_word = at > 0 and (text[at - 1].isalnum() or text[at - 1] == "_")
        if not is_word and text.startswith("operator", at) and self._operator():
            return
        if plain := _PLAIN.match(text, at):
            self._take(plain.end())
        elif text.startswith(_ANONYMOUS, at):
            self._take(at + len(_ANONYMOUS))
        elif character == "<" and not self._begins_component():
            self._template()
        elif character == "<":
            self._type()
        elif character == "(":
            self._parameters()
        elif character == "[":
            tag = _TAG.match(text, at)
            self._at = tag.end() if tag else at
            if tag is None:
                self._take(at + 1)
        elif character == "{":
            self._braces()
        else:
            self._take(at + 1)

    def _take(self, end: int) -> None:
        self._parts.append(self._text[self._at : end])
        self._at = end

    def _begins_component(self) -> bool:
        """Whether a `<` is no list of a template's arguments, but a type before a function of Rust: `<T as Trait>::f`."""
        return not self._parts or self._parts[-1] == " "

    def _type(self) -> None:
        """Take a type before a function of Rust: `Box` of `<Box<u8>>::new`, `<Box as Clone>` of `<Box<u8> as Clone>::clone`."""
        end = _closing(self._text, self._at)
        kind = self._text[self._at + 1 : end - 1]
        while not self._with_templates and kind != (kind := _ANGLES.sub("", kind)):
            pass
        self._parts.append(f"<{kind}>" if self._with_templates or " " in kind else kind)
        self._at = end

    def _template(self) -> None:
        end = _closing(self._text, self._at)
        if self._with_templates:
            self._take(end)
            return
        if self._parts[-1].endswith("::"):  # of Rust: f::<u8>
            self._parts[-1] = self._parts[-1][:-2]
        self._at = end

    def _operator(self) -> bool:
        """Take `operator` with what it names; False if that is only the beginning of an ordinary name."""
        if found := _OPERATOR.match(self._text, self._at):
            self._take(found.end())
            if self._text.startswith(" <", self._at):
                self._at += 1
            return True
        if not self._text.startswith(_CONVERSION, self._at):
            return False
        start = end = self._at + len(_CONVERSION)
        while end < len(self._text) and self._text[end] != "(":
            end = _closing(self._text, end) if self._text[end] == "<" else end + 1
        kind = self._text[start:end]
        while not self._with_templates and kind != (kind := _INNERMOST.sub("", kind)):
            pass
        self._parts.append(_CONVERSION + kind)
        self._at = end
        return True

    def _parameters(self) -> None:
        """Pass a list of parameters. What follows it is a local name, the rest of a result's type, or the end."""
        end = _closing(self._text, self._at)
        if self._text[self._at + 1] in "*&":  # of a function that returns a pointer to another: int (*f(int))(char)
            name, self._ending = _parts(self._text[self._at + 2 : end - 1], self._with_templates)
            self._parts, self._at = [name], len(self._text)
            return
        found = _QUALIFIERS.match(self._text, end)
        after = found.end() if found else end
        if self._text.startswith("::", after):
            self._at = after
        elif after == len(self._text):
            self._ending, self._at = self._text[end:after], after
        elif self._text.startswith(" ", end) and not self._text.startswith(" requires ", after):
            self._at = end
        elif self._text.startswith(" requires ", after):
            self._ending, self._at = self._text[end:after], len(self._text)
        else:
            raise ValueError(f"{self._text} goes on after its parameters")

    def _braces(self) -> None:
        """Take `{lambda(int)#1}` as `{lambda#1}`."""
        end = _closing(self._text, self._at)
        inside = self._text[self._at + 1 : end - 1]
        kind = re.split(r"[(<#]", inside, maxsplit=1)[0]
        number = inside.rpartition("#")[2] if "#" in inside else ""
        self._parts.append("{" + kind + (f"#{number}" if number else "") + "}")
        self._at = end


_PAIRS = {")": "(", "]": "[", "}": "{"}


def _closing(text: str, start: int) -> int:
    """The end of the bracket that opens at `start`. Raises ValueError if it does not close."""
    stack, at = [text[start]], start + 1
    while at < len(text):
        character = text[at]
        if character == "o" and (found := _OPERATOR.match(text, at)) and not text[at - 1].isalnum():
            at = found.end()
            continue
        if character in "(<[{":
            stack.append(character)
        elif character == ">":
            if stack[-1] == "<" and text[at - 1] != "-":
                stack.pop()
        elif character in _PAIRS:
            while stack and stack.pop() != _PAIRS[character]:
                pass
        at += 1
        if not stack:
            return at
    raise ValueError(f"{text} has no end of what opens at {start}")


def _opening(text: str, end: int) -> int:
    """Where the parenthesis opens that closes at `end`."""
    depth = 0
    for at in range(end, -1, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if not depth:
            return at
    return end


# -- patterns -----------------------------------------------------------------------------------------------------------

_CLASS = re.compile(r"\[[^\]]*\]")
_WORD = re.compile(r"[^\W\d]\w{2,}")
_GIVEN = (
    "std string allocator char_traits basic_string basic_istream basic_ostream basic_iostream istream ostream iostream"
    " operator new delete const volatile restrict noexcept anonymous namespace lambda unnamed type default arg clone"
    " signed unsigned char short int long float double bool void wchar_t char8_t char16_t char32_t nullptr_t decltype auto"
    " _Float16 __int128 __float128 decimal32 decimal64 decimal128 half true false sizeof alignof throw typeid vtable for"
    " VTT typeinfo name construction guard variable reference temporary thunk non-virtual virtual covariant return to"
    " transaction complex imaginary requires co_await cast dynamic_cast static_cast const_cast reinterpret_cast"
    " isize usize str part constprop isra cold lto_priv localalias llvm u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64 mut"
    " closure shim dyn impl extern unsafe"
)
"""Words of demangled names that mangled ones do not have as they are; no part of them counts, either."""


def words_of(pattern: str) -> list[str]:
    """Words, or parts of such, that the mangled name of each function has which `pattern` matches in its demangled form."""
    if any(special in pattern for special in "\\$"):
        return []
    found = _WORD.findall(_CLASS.sub("?", pattern))
    return [word for word in found if word.isascii() and word not in _GIVEN]


def possible(pattern: str, symbols: Sequence[str]) -> list[int]:
    """The positions of the symbols that `pattern` may match in their demangled form."""
    first, *others = sorted(words_of(pattern), key=len, reverse=True) or [""]
    places = [place for place, symbol in enumerate(symbols) if first in symbol and symbol.startswith(MANGLED)]
    return [place for place in places if all(word in symbols[place] for word in others)] if others else places


def forms(names: Sequence[str], pattern: str) -> list[list[str]]:
    """The forms of demangled names that a pattern may mean: each list has one of every name."""
    full = [demangled(name) for name in names]
    found = [[_bare(each) for each in full], [short(each) for each in full]]
    if "(" in pattern.replace(_ANONYMOUS, "").replace("operator()", ""):
        found.append(full)
    if "<" in pattern:
        found += [full, [_bare(each, with_templates=True) for each in full]]
        found.append([_bare(each, with_templates=True).replace("> >", ">>") for each in full])
    return found


def _without_tags(wanted: str) -> str:
    """A name or pattern without parameters has no tags in its demangled form, either."""
    return wanted if "(" in wanted else _TAG.sub("", wanted)


def as_pattern(text: str) -> str:
    """A pattern for demangled names: `[]` and `[abi:...]` in it are no classes of characters."""
    text = _without_tags(text)
    return re.sub(r"\[(\]|abi:\w+\])", lambda found: f"\\[{found[1][:-1]}\\]", text)


def distinct(symbols: Iterable[str]) -> dict[str, str]:
    """The readable name of each symbol; in full where several would have the same, such as overloads."""
    shown = {symbol: readable(symbol) for symbol in symbols}
    several = Counter(shown.values())
    return {
        symbol: (demangled(symbol) or name) if name != symbol and several[name] > 1 else name
        for symbol, name in shown.items()
    }


def named(wanted: str, symbols: Sequence[str]) -> list[int]:
    """The positions of the symbols whose demangled name, in full or in short, is `wanted`."""
    left, wanted = possible(wanted, symbols), _without_tags(wanted)
    found = {
        place
        for form in forms([symbols[place] for place in left], wanted)
        for place, name in zip(left, form, strict=True)
        if name == wanted
    }
    return sorted(found)
