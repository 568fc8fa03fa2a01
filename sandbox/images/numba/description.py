"""Descriptions of compiled functions: the words of the arguments and of the result, their places, and which are used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from typing import Any

from sandbox.abi.convention import ARGUMENT_REGISTERS
from sandbox.images import compiled
from sandbox.images.btf import BtfType, Float, Int, Other, Pointer, Prototype, Stored, Void
from sandbox.images.numba import live
from sandbox.images.numba.layout import Place, Word, has_members, members, offsets, places, words_of
from sandbox.process.once import cached_property

_NAME = re.compile(r"%[-\w.$]+|%\"[^\"]*\"")
_known: dict[str, Description] = {}
_STATUS = Int(32, True)
_MEMBER = re.compile(r"\.f(?=\d+(?:\.|$))")


class Description:
    """A specialisation. `name`: module and qualified name of the function; `signature`: Numba's."""

    def __init__(self, dispatcher: Any, result: Any) -> None:
        py_func = dispatcher.py_func
        self.name = f"{py_func.__module__}.{py_func.__qualname__}"
        self.signature = result.signature
        self._result = result
        self._context = result.target_context

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Name -> Numba type, in their order."""
        return dict(zip(self._result.fndesc.args, self._result.fndesc.argtypes, strict=True))

    @property
    def data_models(self) -> Any:
        """Numba's data model manager."""
        return self._context.data_model_manager

    @cached_property
    def places(self) -> list[Place]:
        """The places of the arguments' words, without those that the function does not use: its callers do not pass them."""
        words = [word for name, kind in self.arguments.items() for word in words_of(self.data_models, kind, name)]
        used = self._used(len(words))
        return [place for place, is_used in zip(places(words), used, strict=True) if is_used]

    def _used(self, count: int) -> list[bool]:
        """For each word after the two pointers: whether the compiled code reads it; True where that is unknown."""
        library, symbol = self._result.library, self._result.fndesc.llvm_func_name
        modules: tuple[Any, ...] = (getattr(library, "_shared_module", None), library._final_module)
        for module in modules:
            try:
                head, _, body = str(module.get_function(symbol)).partition("{\n")
            except (AttributeError, NameError):
                continue
            names = _NAME.findall(head[head.find("define ") :])[2:]
            if body and len(names) == count:
                return [re.search(re.escape(name) + r"(?![-\w.$])", body) is not None for name in names]
        return [True] * count

    @cached_property
    def result_words(self) -> list[tuple[Word, int]]:
        """The words of the result, each with its offset from where the result is stored."""
        kind = self.result_type
        model = self.data_models.lookup(kind)
        target = self._context.target_data
        return list(offsets(model, model.get_return_type(), target, "result"))

    @property
    def result_type(self) -> Any:
        """Numba's type of the stored value: for an optional result, that of the value."""
        kind = self._result.fndesc.restype
        return kind.type if type(kind).__name__ == "Optional" else kind


def describe(ip: int) -> Description:
    """The specialisation that the function at `ip` is.

    Raises LookupError if no function of Numba is there, or one that Numba keeps no description of: loops for NumPy, methods of
    jitclasses as Python calls them, and code whose dispatcher has been freed.
    """
    image = compiled.source.at(ip)
    symbol = next((it.name for it in image.object.functions if it.address == ip), "") if image else ""
    if not symbol:
        raise LookupError(f"no function of Numba begins at {ip:#x}")
    if symbol not in _known:
        for dispatcher, result in live.specialisations():
            _known.setdefault(result.fndesc.llvm_func_name, Description(dispatcher, result))
    if symbol not in _known:
        raise LookupError(f"Numba keeps no signature of {symbol!r}")
    return _known[symbol]


def prototype(function: str) -> Prototype | None:
    """The prototype that all compiled specialisations of `function` (module and qualified name) have in common.

    A parameter's words are parameters of their own: `n`, `a.data`, `a.shape.0`. None if nothing is compiled, or if what is has no
    signature.
    """
    addresses = {
        symbol.address
        for image in compiled.source.images()
        if image.name == "numba"
        for symbol in image.functions
        if symbol.name == function
    }
    try:
        found = [_of(describe(address)) for address in sorted(addresses)]
    except LookupError:
        return None
    return reduce(_common, found) if found else None


def _of(description: Description) -> Prototype:
    manager = description.data_models
    kinds: dict[str, BtfType] = {}
    for name, kind in description.arguments.items():
        kinds |= _leaves(manager.lookup(kind), name)
    places = [place for place in description.places if _number(place) is not None]
    stored = _leaves(manager.lookup(description.result_type), "result")
    return Prototype(
        tuple((_written(place.word.path), _type(place.word, kinds)) for place in places),
        _STATUS,
        tuple(_number(place) for place in places),
        tuple(
            Stored(_written(word.path).removeprefix("result").removeprefix("."), _type(word, stored), offset)
            for word, offset in description.result_words
        ),
    )


def _written(path: str) -> str:
    """As users write it: members of tuples have numbers, where Numba calls those of different types f0, f1, ..."""
    return _MEMBER.sub(".", path)


def _number(place: Place) -> int | None:
    """The number of the integer argument that is there; None in a vector register."""
    if place.register:
        return ARGUMENT_REGISTERS.index(place.register)
    return None if place.vector >= 0 else len(ARGUMENT_REGISTERS) + place.stack // 8 - 1


def _leaves(model: Any, path: str) -> dict[str, BtfType]:
    """The types of the scalars of a value that Numba's own types say more of than LLVM's."""
    if not has_members(model):
        kind = _of_numba(model.fe_type)
        return {path: kind} if kind is not None else {}
    found: dict[str, BtfType] = {}
    for name, member in members(model):
        found |= _leaves(member, f"{path}.{name}")
    if type(model.fe_type).__name__ == "UnicodeType":
        found[f"{path}.data"] = Pointer(lambda: Int(8, False))
    return found


def _of_numba(kind: Any) -> BtfType | None:
    names = {base.__name__ for base in type(kind).__mro__}
    if "Boolean" in names:
        return Int(8, False)
    if "Integer" in names:
        return Int(kind.bitwidth, bool(kind.signed))
    if "CPointer" in names:
        return Pointer(lambda: _of_numba(kind.dtype) or Other())
    return None


def _type(word: Word, known: dict[str, BtfType]) -> BtfType:
    if word.path in known:
        return known[word.path]
    if word.is_float:
        return Float()
    return Int(word.size, True) if word.kind.startswith("i") else Pointer(Void)


def _common(one: Prototype, other: Prototype) -> Prototype:
    """The words that are at the same place in both, with types that are fetched in the same way."""
    theirs = set(_words(other))
    both = [index for index, word in enumerate(_words(one)) if word in theirs]
    assert one.numbers is not None
    return Prototype(
        tuple(one.parameters[index] for index in both),
        one.returns,
        tuple(one.numbers[index] for index in both),
        tuple(it for it in one.stored if any(_shown(it) == _shown(that) for that in other.stored)),
    )


def _words(of: Prototype) -> Iterator[tuple[str, str, int | None]]:
    assert of.numbers is not None
    for (name, kind), number in zip(of.parameters, of.numbers, strict=True):
        yield name, _kind(kind), number


def _shown(it: Stored) -> tuple[str, str, int]:
    return it.name, _kind(it.type), it.offset


def _kind(kind: BtfType) -> str:
    return "pointer" if isinstance(kind, Pointer) else repr(kind)
