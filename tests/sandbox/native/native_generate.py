"""Random programs of the native language, from a seed: what they compute is checked, what they become is verified."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

WORDS = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"]
ARITHMETIC = ["+", "-", "*", "//", "%", "&", "|", "^"]
RELATIONS = ["==", "!=", "<", "<=", ">", ">="]
BITS = ["popcount", "leading_zeros", "trailing_zeros", "byteswap"]


class ProgramWriter:
    """Writes functions without pointers whose every expression is well typed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._functions: list[tuple[str, str, list[str]]] = []

    def program(self, count: int) -> str:
        """The source of *count* functions, later ones calling earlier ones."""
        return "\n".join(self._function(f"f{number}") for number in range(count))

    def _function(self, name: str) -> str:
        rng = self._random
        types = [rng.choice(WORDS) for _ in range(rng.randint(1, 4))]
        self._locals = {f"p{i}": word for i, word in enumerate(types)}
        self._arrays: dict[str, tuple[str, int]] = {}
        self._readonly: set[str] = set()
        self._fresh = self._loops = 0
        result = rng.choice([*WORDS, "bool_"])
        parameters = ", ".join(f"{p}: {word}" for p, word in self._locals.items())
        body = [line for _ in range(rng.randint(2, 6)) for line in self._statement(2)]
        value = self._condition(2) if result == "bool_" else self._value(result, 3)
        lines = [f"    {line}" for line in [*body, f"return {value}"]]
        if result != "bool_":
            self._functions.append((name, result, types))
        head = f"@native(bounded=False, {rng.choice(['inline=True', 'noinline=True', 'inline=False'])})"
        return "\n".join([head, f"def {name}({parameters}) -> {result}:", *lines, ""])

    # statements

    def _statement(self, depth: int) -> Iterator[str]:
        kinds: list[Callable[..., Iterator[str]]] = [self._assign, self._assign, self._update, self._declare_array]
        if depth:
            kinds += [self._if, self._for, self._while]
        if self._loops:
            kinds.append(self._leave)
        yield from self._random.choice(kinds)(depth)

    def _block(self, depth: int) -> list[str]:
        known, arrays = dict(self._locals), dict(self._arrays)
        count = self._random.randint(1, 3)
        lines = [f"    {line}" for _ in range(count) for line in self._statement(depth)]
        self._locals, self._arrays = known, arrays
        return lines

    def _assign(self, _depth: int) -> Iterator[str]:
        rng = self._random
        if rng.random() < 0.5:
            name, word = self._new("x"), rng.choice(WORDS)
            value = self._value(word, 3)
            self._locals[name] = word
            yield f"{name}: {word} = {value}"
        elif self._arrays and rng.random() < 0.5:
            array, (word, count) = rng.choice(list(self._arrays.items()))
            yield f"{array}[{self._index(count)}] = {self._value(word, 2)}"
        else:
            yield from self._reassign()

    def _reassign(self) -> Iterator[str]:
        names = [name for name in self._locals if name not in self._readonly]
        if names:
            name = self._random.choice(names)
            yield f"{name} = {self._value(self._locals[name], 3)}"

    def _update(self, _depth: int) -> Iterator[str]:
        names = [name for name in self._locals if name not in self._readonly]
        if names:
            name = self._random.choice(names)
            if self._random.random() < 0.2:
                yield f"{name} {self._random.choice(['<<=', '>>='])} {self._value('u8', 1)}"
            else:
                yield f"{name} {self._random.choice(ARITHMETIC)}= {self._value(self._locals[name], 2)}"

    def _declare_array(self, _depth: int) -> Iterator[str]:
        name, word, count = self._new("t"), self._random.choice(WORDS), self._random.randint(1, 9)
        self._arrays[name] = (word, count)
        yield f"{name}: array[{word}, {count}] = zeroed"

    def _if(self, depth: int) -> Iterator[str]:
        yield f"if {self._condition(2)}:"
        yield from self._block(depth - 1)
        if self._random.random() < 0.5:
            yield "else:"
            yield from self._block(depth - 1)

    def _for(self, depth: int) -> Iterator[str]:
        name, word = self._new("i"), self._random.choice(["u8", "i8"])
        step = self._random.choice([1, 1, 2, 7, -1, -3, 100])
        yield f"for {name} in range({self._value(word, 1)} & 31, {self._value(word, 1)} & 31, {step}):"
        self._locals[name] = word
        self._readonly.add(name)
        self._loops += 1
        yield from self._block(depth - 1)
        self._loops -= 1
        del self._locals[name]

    def _while(self, depth: int) -> Iterator[str]:
        name = self._new("n")
        yield f"{name}: u32 = {self._random.randint(1, 20)}"
        yield f"while {name} != 0 and ({self._condition(1)}):"
        yield f"    {name} -= 1"
        self._loops += 1
        yield from self._block(depth - 1)
        self._loops -= 1

    def _leave(self, _depth: int) -> Iterator[str]:
        yield f"if {self._condition(1)}:"
        yield f"    {self._random.choice(['break', 'continue'])}"

    # expressions

    def _value(self, word: str, depth: int) -> str:
        rng = self._random
        if depth == 0 or rng.random() < 0.2:
            return self._leaf(word)
        kinds = [self._binary, self._binary, self._shift, self._cast, self._unary, self._choice, self._bits, self._call]
        return rng.choice(kinds)(word, depth - 1)

    def _leaf(self, word: str) -> str:
        names = [name for name, each in self._locals.items() if each == word]
        names += [f"{name}[{self._index(count)}]" for name, (each, count) in self._arrays.items() if each == word]
        if names and self._random.random() < 0.8:
            return self._random.choice(names)
        return f"cast({word}, {self._literal(word)})"

    def _index(self, count: int) -> str:
        eights = [name for name, each in self._locals.items() if each in ("u8", "i8")]
        return self._random.choice([str(self._random.randrange(count)), *eights])

    def _literal(self, word: str) -> int:
        bits = int(word[1:])
        return self._random.choice(
            [0, 1, 2, 3, 7, (1 << bits - 1) - 1, 1 << bits - 2, self._random.getrandbits(bits - 1)]
        )

    def _binary(self, word: str, depth: int) -> str:
        right = self._value(word, depth) if self._random.random() < 0.8 else str(self._literal(word))
        return f"({self._value(word, depth)} {self._random.choice(ARITHMETIC)} {right})"

    def _shift(self, word: str, depth: int) -> str:
        count = self._value(self._random.choice(["u8", "u32", "u64"]), depth)
        return f"({self._value(word, depth)} {self._random.choice(['<<', '>>'])} {count})"

    def _cast(self, word: str, depth: int) -> str:
        if self._random.random() < 0.2:
            return f"cast({word}, {self._condition(depth)})"
        return f"cast({word}, {self._value(self._random.choice(WORDS), depth)})"

    def _unary(self, word: str, depth: int) -> str:
        return f"({self._random.choice('-~')}{self._value(word, depth)})"

    def _choice(self, word: str, depth: int) -> str:
        if self._random.random() < 0.5:
            name = self._random.choice(["min", "max"])
            return f"{name}({self._value(word, depth)}, {self._value(word, depth)})"
        return f"({self._value(word, depth)} if {self._condition(depth)} else {self._value(word, depth)})"

    def _bits(self, word: str, depth: int) -> str:
        return f"{self._random.choice(BITS)}({self._value(word, depth)})"

    def _call(self, word: str, depth: int) -> str:
        callable_ = [function for function in self._functions if function[1] == word]
        if not callable_:
            return self._leaf(word)
        name, _, types = self._random.choice(callable_)
        return f"{name}({', '.join(self._value(each, min(depth, 1)) for each in types)})"

    def _condition(self, depth: int) -> str:
        rng = self._random
        if depth and rng.random() < 0.3:
            operator = rng.choice(["and", "or", "^", "&", "=="])
            return f"({self._condition(depth - 1)} {operator} {self._condition(depth - 1)})"
        if rng.random() < 0.2:
            return f"(not {self._condition(0)})"
        word = rng.choice(WORDS)
        return f"({self._value(word, depth and 1)} {rng.choice(RELATIONS)} {self._value(word, depth and 1)})"

    def _new(self, prefix: str) -> str:
        self._fresh += 1
        return f"{prefix}{self._fresh}"


TOKEN = re.compile(r"\w+|\s+|//|<<|>>|->|[=!<>]=|.")
SPARE = [
    *WORDS, "bool_", "void", "null", "zeroed", "True", "None", "0", "1", "-1", "1.5", "256", "a", "b", "p", "x",
    "ptr", "array", "fn", "cast", "addressof", "load", "store", "copy", "range", "min", "rdtsc", "trap", "syscall",
    "Node", "LIMIT", "TABLE", "if", "else", "while", "for", "in", "return", "break", "continue", "and", "not", "pass",
    "global", "(", ")", "[", "]", ",", ":", ".", "+", "-", "*", "//", "%", "<<", "==", "<", "=", "+=", "&", "->", "@",
    "lambda", "del", "yield", "is", "'text'", "18446744073709551616",
]  # fmt: skip


def mutate(source: str, rng: random.Random) -> str:
    """*source* with one to four of its tokens or lines dropped, doubled, moved or replaced."""
    for _ in range(rng.randint(1, 4)):
        source = _mutate_lines(source, rng) if rng.random() < 0.2 else _mutate_tokens(source, rng)
    return source


def _mutate_tokens(source: str, rng: random.Random) -> str:
    tokens = TOKEN.findall(source) or [""]
    at, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    match rng.randrange(4):
        case 0:
            tokens[at] = ""
        case 1:
            tokens[at] = tokens[other]
        case 2:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case _:
            tokens[at] = rng.choice(SPARE)
    return "".join(tokens)


def _mutate_lines(source: str, rng: random.Random) -> str:
    lines = source.split("\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[other])
        case _:
            lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines)
