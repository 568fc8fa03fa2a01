"""What is known of a compiled function: its arguments and result, where they are, and which of them it uses."""

from __future__ import annotations

import re
from typing import Any

from sandbox.images import compiled
from sandbox.numba import live
from sandbox.numba.layout import Place, Word, offsets, places, words_of
from sandbox.process.once import cached_property

_NAME = re.compile(r"%[-\w.$]+|%\"[^\"]*\"")
_known: dict[str, Description] = {}


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
        """Where the words of the arguments are, without those that the function does not use: its callers do not pass them."""
        words = [word for name, kind in self.arguments.items() for word in words_of(self.data_models, kind, name)]
        used = self._used(len(words))
        return [place for place, is_used in zip(places(words), used, strict=True) if is_used]

    def _used(self, count: int) -> list[bool]:
        """Of each word after the two pointers, whether the compiled code reads it; True where that cannot be told."""
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
        """Numba's type of what is stored: of an optional result, that of what it may be."""
        kind = self._result.fndesc.restype
        return kind.type if type(kind).__name__ == "Optional" else kind


def describe(ip: int) -> Description:
    """The specialisation that the function at `ip` is.

    Raises LookupError if no function of Numba is there, or one that Numba keeps no description of: loops for NumPy, methods of
    jitclasses as Python calls them, and code whose dispatcher has gone.
    """
    image = compiled.source.at(ip)
    symbol = next((it.name for it in image.object.functions if it.address == ip), "") if image else ""
    if not symbol:
        raise LookupError(f"no function of Numba begins at {ip:#x}")
    if symbol not in _known:
        for dispatcher, result in live.specialisations():
            _known.setdefault(result.fndesc.llvm_func_name, Description(dispatcher, result))
    if symbol not in _known:
        raise LookupError(f"Numba does not say what {symbol!r} takes and returns")
    return _known[symbol]
