"""Linking native handlers of users to the runtime, the task and their maps."""

from __future__ import annotations

import ctypes
import json
import weakref
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from ftrace.core.handlers import floats
from ftrace.core.runtime import runtime
from ftrace.hit.events import event_state
from ftrace.hit.faults import GUARDED_READS
from ftrace.hit.ring_buffer import writer
from sandbox.compile.cache import default_cache
from sandbox.compile.cache import key as cache_key
from sandbox.compile.exports import exported, needed
from sandbox.elf import tables
from sandbox.native import NativeFunction, Unit, containers
from sandbox.native.back.compile import compile_unit
from sandbox.native.back.fingerprint import fingerprint
from sandbox.native.back.verify import verify_object
from sandbox.native.handler import Fields
from sandbox.native.native_image import Linked, NativeImage

Made = TypeVar("Made")
ALLOWED = frozenset(GUARDED_READS + floats.SYMBOLS + writer.SYMBOLS + event_state.SYMBOLS)
"""Functions that users' code may call without defining them, besides those that are exported to programs."""


class HandlerCode:
    """The products of compiling a handler, from the cache if they are there."""

    def __init__(self, handler: NativeFunction, role: str) -> None:
        self.handler = handler
        self._unit = Unit(f"{role}:{handler.name}", [handler], checked=True)
        self._fingerprint = fingerprint(self._unit)

    def verified_object(self) -> bytes:
        """The object. Raises TypeError if the handler violates the restrictions, NativeError if it is not in the language."""
        return self.cached("verified", self._verified)

    def registers(self, position: int) -> Fields | None:
        """The fields that it uses of the pt_regs that its parameter number `position` points to; None: perhaps all."""
        found = json.loads(self.cached(f"registers {position}", lambda: self._used(position)))
        return found and Fields(*map(frozenset, found))

    def cached(self, what: str, make: Callable[[], bytes]) -> bytes:
        """The result of `make()`, from the cache if it is there under `what`."""
        store, key = default_cache(), cache_key(what, self._fingerprint)
        made = store.get(key)
        if made is None:
            made = make()
            store.put(key, made)
        return made

    def _verified(self) -> bytes:
        code = compile_unit(self._unit)
        problems = verify_object(code, ALLOWED | exported.keys())
        if problems:
            raise TypeError(f"{self.handler.name} cannot be a handler: {'; '.join(problems)}")
        return code

    def _used(self, position: int) -> bytes:
        from sandbox.native.front.fields import fields_used

        function = self.handler.typed
        used = fields_used(function, function.parameters[position])
        return json.dumps(used and [sorted(names) for names in used]).encode()


def link(name: str, object_code: bytes) -> NativeImage:
    """The image of `object_code`, listed as `name`, its variables set; a fault in it ends the guarded call.

    It is unmapped after it has been collected: keep it while it may run. Raises LookupError for a map that no longer exists.
    """
    _withdraw_collected()
    symbols = _symbols(object_code)
    needed(symbols)
    image = NativeImage(_free(name), object_code, uses=runtime().image)
    for symbol in symbols:
        if symbol.startswith(containers.PREFIX):
            _give_state(image, containers.find(symbol))
        elif symbol == "task_offset":
            image.variable(symbol).value = runtime().key.offset
    image.publish()
    runtime().faults.cover(image.name, [image.text])
    weakref.finalize(image, _collected.append, image.linked).atexit = False
    return image


# The garbage collector may run while a lock is held that withdrawing takes.
_collected: deque[Linked] = deque()


def _withdraw_collected() -> None:
    with suppress(IndexError):
        while True:
            linked = _collected.popleft()
            runtime().faults.cover(linked.name, [])
            linked.withdraw()


def probe_read_faults() -> int:
    """How often `probe_read` and `probe_read_str` have met a bad pointer in this process."""
    return int(runtime().image.variable("probe_read_faults").value)


class Once(Generic[Made]):
    """Objects made of handlers, once for each role, and kept by the handler.

    A weak-keyed table would never free them: the image refers to its maps, a map to the module that it was made in, and the
    module to the handler.
    """

    def get(self, handler: NativeFunction, role: Any, make: Callable[[], Made]) -> Made:
        """The object made of `handler` for `role`; `make()` makes it the first time."""
        roles = self._of(handler)
        if role not in roles:
            roles[role] = make()
        return roles[role]

    def all(self, handler: NativeFunction) -> list[Made]:
        """All objects made of `handler`."""
        return list(self._of(handler).values())

    def _of(self, handler: NativeFunction) -> dict[Any, Made]:
        roles: dict[Any, Made] = handler.made.setdefault(self, {})
        return roles


_names: Counter[str] = Counter()


def _free(name: str) -> str:
    """`name`, or for further images of that name `name.2`, `name.3`, ..."""
    _names[name] += 1
    return name if _names[name] == 1 else f"{name}.{_names[name]}"


def _give_state(image: NativeImage, container: containers.Container) -> None:
    ctypes.memmove(image.address(container.name), container.state, len(container.state))
    image.keep.append(container)


def _symbols(object_code: bytes) -> list[str]:
    file = tables.ElfFile(object_code)
    table = file.sections_of_type(tables.SHT_SYMTAB)[0]
    names = file.strings(table)
    return [tables.string_at(names, symbol.name_offset) for symbol in file.symbols(table)]
