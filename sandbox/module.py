"""Modules: programs loaded into this process, coming and going.

A module is registered while it is loaded. It is never unloaded by garbage collection: only `unload()` ends it.
"""

from __future__ import annotations

import enum
import threading
from array import array
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Protocol

from sandbox.calls import Function
from sandbox.irtypes import signature
from sandbox.linker import LinkedObject, link
from sandbox.memory import TextMapping
from sandbox.objectfile import prepare
from sandbox.program import CompiledProgram, compile_ir, read_source
from sandbox.stubs import Flavour
from sandbox.symbols import Symbol, symbol_table
from sandbox.types import Signature


class ModuleState(enum.Enum):
    """COMING: linked, and nobody can run it yet. GOING: being unloaded. GONE: its code is no longer mapped."""

    COMING = "coming"
    LIVE = "live"
    GOING = "going"
    GONE = "gone"


class Interface(Protocol):
    """What a source says about its functions."""

    def signature(self, name: str) -> Signature | None:
        """The signature of function `name`, None if the source does not give it."""

    def attributes(self, name: str) -> frozenset[str]:
        """LLVM attributes of function `name`, such as `returns_twice`."""


Notifier = Callable[[ModuleState, "Module"], None]

_lock = threading.RLock()
_modules: dict[str, Module] = {}
_notifiers: list[Notifier] = []


class Module:
    """A loaded program. Made by `load`, not directly."""

    def __init__(self, name: str, linked: LinkedObject, interface: Interface) -> None:
        self.name = name
        """Printed as [name]."""
        self.functions: tuple[Symbol, ...] = linked.functions
        """By ascending address."""
        self.data: tuple[Symbol, ...] = linked.data
        """Data symbols, by ascending address."""
        self.sites: array[int] = linked.sites
        """Addresses of the 5-byte stubs, ascending."""
        self.site_functions: list[Symbol] = linked.site_functions
        """The function of each site, in the same order."""
        self.site_kind: str = linked.kind.value
        """'fentry', 'mcount', 'patchable' or 'none'."""
        self.texts: tuple[TextMapping, ...] = linked.texts
        self.state = ModuleState.COMING
        self._linked: LinkedObject | None = linked
        self._interface = interface
        self._by_name = {symbol.name: symbol for symbol in reversed(linked.functions)}
        self._callables: dict[str, Function] = {}

    def __repr__(self) -> str:
        return f"<Module {self.name}: {len(self.functions)} functions, {self.state.value}>"

    def __getitem__(self, name: str) -> Function:
        """The function `name`, callable. Raises LookupError naming it if there is none."""
        if self.state is ModuleState.GONE:
            raise LookupError(f"module {self.name!r} is unloaded")
        found = self._callables.get(name)
        if found is None:
            symbol = self.symbol(name)
            kind = self._interface.signature(name)
            if kind is None:
                raise LookupError(f"module {self.name!r} does not say what {name!r} takes and returns")
            found = self._callables[name] = Function(kind, symbol.address, symbol.size)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def symbol(self, name: str) -> Symbol:
        """The symbol of function `name`. Raises LookupError naming it, and near misses, if there is none."""
        try:
            return self._by_name[name]
        except KeyError:
            raise LookupError(f"no function {name!r} in module {self.name!r}{self._suggestion(name)}") from None

    def _suggestion(self, name: str) -> str:
        import difflib

        near = difflib.get_close_matches(name, self._by_name, 3)
        return f"; is it {' or '.join(map(repr, near))}?" if near else ""

    def attributes(self, name: str) -> frozenset[str]:
        """LLVM attributes of function `name` (`noinline`, `returns_twice`, ...); empty for other sources."""
        return self._interface.attributes(name)

    def unload(self) -> None:
        """Take the module out of the process.

        Tells everyone GOING first; an OSError(EBUSY) from one of them is raised on and the module stays.
        """
        with _lock:
            if self.state is ModuleState.GONE:
                return
            self._say_goodbye()
            del _modules[self.name]
            symbol_table.remove(self.name)
            self.state = ModuleState.GONE
            self._callables.clear()
            linked, self._linked = self._linked, None
            self.texts = ()
        if linked is not None:
            linked.unlink()

    def _say_goodbye(self) -> None:
        self.state = ModuleState.GOING
        told: list[Notifier] = []
        try:
            for notifier in _notifiers:
                notifier(ModuleState.GOING, self)
                told.append(notifier)
        except OSError:
            # Those who let go already take the module up again.
            for notifier in told:
                notifier(ModuleState.COMING, self)
                notifier(ModuleState.LIVE, self)
            self.state = ModuleState.LIVE
            raise


class _IrInterface:
    def __init__(self, program: CompiledProgram) -> None:
        self._program = program

    def signature(self, name: str) -> Signature | None:
        line = self._program.definitions.get(name)
        return signature(line, self._program.types) if line else None

    def attributes(self, name: str) -> frozenset[str]:
        import re

        line = self._program.definitions.get(name, "")
        group = re.search(r" (#\d+)\b", line)
        return frozenset(self._program.groups.get(group[1], "").split()) if group else frozenset()


def load(
    source: Any,
    *,
    name: str | None = None,
    flavour: str | Flavour = Flavour.FENTRY,
    opt: int = 1,
    notrace: Collection[str] = (),
) -> Module:
    """Compile `source` and load it as module `name`.

    `source`: LLVM IR text (str), bitcode (bytes), an `llvmlite.ir.Module`, or the pathlib.Path of a file with IR text
    or bitcode. `flavour`: of the stubs ('fentry', 'mcount', 'patchable', 'none'). `opt`: 0 to 3. `notrace`: functions
    that get no stub.

    Raises ProgramError (a ValueError) if it does not compile, ValueError if a module of that name is loaded.
    """
    origin = str(source) if isinstance(source, Path) else f"<{name or 'program'}>"
    name = name or (source.stem if isinstance(source, Path) else _free_name())
    _check_name(name)
    text = read_source(source) if isinstance(source, Path) else source
    program = compile_ir(text, origin=origin, flavour=Flavour.of(flavour), opt=opt, notrace=notrace)
    linked = link(prepare(program.object), name)
    return _introduce(Module(name, linked, _IrInterface(program)))


def _free_name() -> str:
    return next(name for name in (f"program{i}" for i in range(len(_modules) + 1)) if name not in _modules)


def _check_name(name: str) -> None:
    if not name or any(character.isspace() or character in "[]:*?" for character in name):
        raise ValueError(f"not a module name: {name!r}")
    if name in _modules:
        raise ValueError(f"a module {name!r} is already loaded; unload it or choose another name")


def _introduce(module: Module) -> Module:
    """Register the module and tell everyone; afterwards it may run."""
    with _lock:
        _check_name(module.name)
        symbol_table.add(module.name, (*module.functions, *module.data))
        _modules[module.name] = module
        _tell(_notifiers, ModuleState.COMING, module)
        module.state = ModuleState.LIVE
        _tell(_notifiers, ModuleState.LIVE, module)
    return module


def _tell(notifiers: Iterable[Notifier], event: ModuleState, module: Module) -> None:
    for notifier in list(notifiers):
        notifier(event, module)


def modules() -> list[Module]:
    """The loaded modules, in the order in which they were loaded."""
    with _lock:
        return list(_modules.values())


def find_module(name: str) -> Module:
    """The loaded module called `name`. Raises LookupError naming it."""
    try:
        return _modules[name]
    except KeyError:
        raise LookupError(f"no module {name!r} is loaded") from None


def register_module_notifier(callback: Notifier) -> None:
    """Call `callback(event, module)` with COMING (before any code of it can run), LIVE and GOING of every module.

    It is first told COMING and LIVE of the modules that are already there. An OSError(EBUSY) raised for GOING stops
    the unload.
    """
    with _lock:
        for module in _modules.values():
            callback(ModuleState.COMING, module)
            callback(ModuleState.LIVE, module)
        _notifiers.append(callback)


def unregister_module_notifier(callback: Notifier) -> None:
    """Stop calling `callback`. Raises ValueError if it is not registered."""
    with _lock:
        _notifiers.remove(callback)
