"""Modules: programs loaded into this process, and notifiers of loading and unloading.

A module is registered while it is loaded, and registered modules are never collected: only `unload()` ends one.
"""

from __future__ import annotations

import enum
import errno
import re
import threading
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from sandbox.loading.gate import Gate
from sandbox.memory.mappings import TextMapping
from sandbox.process import fork
from sandbox.process.fork import ProcessBound
from sandbox.process.near import did_you_mean
from sandbox.symbols import gdbjit, source_lines
from sandbox.symbols.perfmap import perf_map
from sandbox.symbols.readable import named, readable
from sandbox.symbols.table import Symbol, symbol_table

if TYPE_CHECKING:
    from sandbox.abi.signatures import Signature
    from sandbox.loading.calls import Function
    from sandbox.loading.loaded_code import LoadedCode


class ModuleState(enum.Enum):
    """COMING: in memory, but not running yet. GOING: being unloaded. GONE: its code has been unmapped."""

    COMING = "coming"
    LIVE = "live"
    GOING = "going"
    GONE = "gone"


class Interface(Protocol):
    """The information that a source has about its functions."""

    def signature(self, name: str) -> Signature | None:
        """The signature of function `name`; None if the source does not give it."""

    def functions_with(self, attribute: str) -> frozenset[str]:
        """Names of the functions with that LLVM attribute."""

    @property
    def scratch_taken(self) -> frozenset[str]:
        """Names of the functions at whose entry r10 or r11 may hold something."""

    @property
    def scratch_kept(self) -> bool:
        """Whether callers may keep values in scratch registers over the calls of functions without a stub."""

    @property
    def reads_frame(self) -> bool:
        """Whether a function may read its own frame, such as its return address."""


Notifier = Callable[[ModuleState, "Module"], None]

# What separates names in lists, patterns and `module:symbol`, or cannot be in a file name.
_UNFIT = re.compile(r"[\s\[\]:*?/\0]")
_lock = fork.renew(threading.RLock())
loaded_modules: dict[str, Module] = {}
"""By name, in the order in which they were loaded. Changed here only; others read it, without a lock."""
_notifiers: list[Notifier] = []


class Module(ProcessBound):
    """A loaded program. Made by `sandbox.load` and `sandbox.adopt`."""

    def __init__(self, name: str, loaded: LoadedCode, interface: Interface) -> None:
        # Imported now and not at a function's first use: a signal handler may use one after interrupting that import.
        from sandbox.loading.calls import Function

        self._function = Function
        self.name = name
        """Printed as [name]."""
        self.functions: tuple[Symbol, ...] = loaded.functions
        """By ascending address."""
        self.data: tuple[Symbol, ...] = loaded.data
        """Data symbols, by ascending address."""
        self.sites: array[int] = loaded.sites
        """Addresses of the 5-byte stubs, ascending."""
        self.site_functions: list[Symbol] = loaded.site_functions
        """The function of each site, in the same order."""
        self.site_kind: str = loaded.kind.value
        """'fentry', 'mcount', 'patchable' or 'none'."""
        self.texts: tuple[TextMapping, ...] = loaded.texts
        self.state = ModuleState.COMING
        self._loaded: LoadedCode | None = loaded
        self._interface = interface
        self._by_name = {symbol.name: symbol for symbol in reversed(loaded.functions)}
        self._callables: dict[str, Function] = {}
        self._gate = Gate()
        self._seen_by_debuggers: gdbjit.Registration | None = None
        self.image: object = None
        """What shows it among the images (sandbox.images.sources). It refers to this object: they go together."""

    def __repr__(self) -> str:
        return f"<Module {self.name}: {len(self.functions)} functions, {self.state.value}>"

    def __getitem__(self, name: str) -> Function:
        """The function `name`, callable. Raises LookupError naming it if it is not there or its type is not known."""
        symbol = self.symbol(name)
        found = self._callables.get(name)
        if found is None:
            signature = self._interface.signature(symbol.name)
            if signature is None:
                raise LookupError(
                    f"the source of module {self.name!r} has no signature for {name!r}; symbol({name!r}).address is its address"
                )
            found = self._callables[name] = self._function(signature, symbol.address, symbol.size, self._gate)
        return found

    def _ipython_key_completions_(self) -> list[str]:
        """The names for `module["<TAB>` in IPython and Jupyter."""
        return sorted(self._by_name)

    def __contains__(self, name: object) -> bool:
        return self._named(name) is not None

    @property
    def interface(self) -> Interface:
        """Signatures and attributes of the functions, as the source gives them."""
        return self._interface

    def symbol(self, name: str) -> Symbol:
        """The symbol of function `name`. Raises LookupError naming it and similar names if there is none."""
        if self.state is ModuleState.GONE:
            raise LookupError(f"module {self.name!r} is unloaded")
        found = self._named(name)
        if found is None:
            near = did_you_mean(name, map(readable, self._by_name))
            raise LookupError(f"no function {name!r} in module {self.name!r}{near}")
        return found

    def _named(self, name: object) -> Symbol | None:
        """The first function with that symbol or, in C++ and Rust, that demangled name."""
        found = self._by_name.get(name) if isinstance(name, str) else None
        if found is None and isinstance(name, str):
            places = named(name, [symbol.name for symbol in self.functions])
            found = self.functions[places[0]] if places else None
        return found

    def functions_with(self, attribute: str) -> frozenset[str]:
        """Names of the functions with an LLVM attribute such as `returns_twice`; empty where the source has none."""
        return self._interface.functions_with(attribute)

    @property
    def scratch_taken(self) -> frozenset[str]:
        """Names of the functions at whose entry r10 or r11 may hold something, by their calling convention."""
        return self._interface.scratch_taken

    @property
    def reads_frame(self) -> bool:
        """Whether a function may read its own frame, such as its return address."""
        return self._interface.reads_frame

    @property
    def scratch_kept(self) -> bool:
        """Whether callers may keep values in scratch registers over the calls of functions without a stub (gcc's -fipa-ra)."""
        return self._interface.scratch_kept

    def unload(self) -> None:
        """Unload the module; does nothing if it is already unloaded.

        Raises OSError(EBUSY), and the module stays, if it is being called from Python or if a notifier raises that for
        GOING. Calls by native code that holds an address are the caller's responsibility.
        """
        with _lock:
            if self.state is ModuleState.GONE:
                return
            self._leave()
            del loaded_modules[self.name]
            symbol_table.remove(self.name)
            source_lines.remove(self.name)
            self.state = ModuleState.GONE
            loaded, self._loaded = self._loaded, None
        if self._seen_by_debuggers:
            self._seen_by_debuggers.withdraw()
        if loaded is not None:
            loaded.discard()

    def _leave(self) -> None:
        """Go from LIVE to GOING if every notifier agrees, else raise OSError and stay LIVE."""
        notified: list[Notifier] = []
        self.state, self._gate.closed = ModuleState.GOING, f"module {self.name!r} is unloaded"
        try:
            if self._gate.running:
                names = ", ".join(sorted(set(self._gate.running)))
                raise OSError(errno.EBUSY, f"module {self.name!r} is being called: {names}")
            # A notifier that is registered during this loop has been called for the module, and must be called for its end.
            while unaware := [notifier for notifier in _notifiers if notifier not in notified]:
                unaware[-1](ModuleState.GOING, self)
                notified.append(unaware[-1])
        except OSError:
            self.state, self._gate.closed = ModuleState.LIVE, ""
            for notifier in [each for each in _notifiers if each in notified]:
                notifier(ModuleState.COMING, self)
                notifier(ModuleState.LIVE, self)
            raise

    def _show(self) -> None:
        """Make the code known to crash reports, profilers and debuggers."""
        perf_map.add_all((symbol.address, symbol.size, f"{symbol.name} [{self.name}]") for symbol in self.functions)
        if self._loaded and self._loaded.debug_image:
            source_lines.add(self.name, self._loaded.debug_image)
            self._seen_by_debuggers = gdbjit.register(self._loaded.debug_image)
            self._loaded.debug_image = None
        if self._loaded and self._loaded.shared_object:
            source_lines.add_shared_object(self.name, *self._loaded.shared_object)
            self._loaded.shared_object = None


def check_name(name: str) -> None:
    """Raise ValueError if `name` cannot be a module's name, or a module of that name is loaded."""
    if not name or _UNFIT.search(name):
        raise ValueError(
            f"module name {name!r} is invalid: use at least one character, and no white space, '[', ']', ':', '*', '?' or '/'"
        )
    if name in loaded_modules:
        raise ValueError(f"a module {name!r} is already loaded: unload it, or choose another name")


def introduce(module: Module, constructors: bool = True) -> Module:
    """Register a module that is in memory: notify COMING, run its constructors if they are wanted, notify LIVE.

    If a notifier or a constructor raises, the module is removed again after notifying GOING. Raises ValueError, and unmaps the
    module, if the name is taken.
    """
    loaded = module._loaded
    assert loaded is not None
    with _lock:
        try:
            check_name(module.name)
        except ValueError:
            loaded.discard()
            raise
        symbol_table.add(module.name, (*module.functions, *module.data))
        loaded_modules[module.name] = module
        module._show()
        try:
            _notify(ModuleState.COMING, module)
            if constructors:
                loaded.start()
            module.state = ModuleState.LIVE
            _notify(ModuleState.LIVE, module)
        except BaseException:
            module.unload()
            raise
    return module


def _notify(event: ModuleState, module: Module) -> None:
    for notifier in list(_notifiers):
        notifier(event, module)


def modules() -> list[Module]:
    """The loaded modules, in the order in which they were loaded. Takes no lock, so it can be called with any lock held."""
    return list(loaded_modules.values())


def find_module(name: str) -> Module:
    """The loaded module called `name`. Raises LookupError naming it."""
    try:
        return loaded_modules[name]
    except KeyError:
        raise LookupError(f"no module {name!r} is loaded{did_you_mean(name, list(loaded_modules))}") from None


def free_name(stem: str) -> str:
    """`stem`, made fit to be a name, or `stem2`, `stem3`, ... : the first that no loaded module has."""
    stem = _UNFIT.sub("_", stem) or "program"
    name, number = stem, 2
    while name in loaded_modules:
        name, number = f"{stem}{number}", number + 1
    return name


def register_module_notifier(callback: Notifier, first: bool = False) -> None:
    """Call `callback(event, module)` with COMING (before any code of it can run), LIVE and GOING of every module.

    COMING and LIVE are notified in the order of registration, GOING in reverse; with `first`, before those already registered.
    The callback is called at once with COMING and LIVE of the modules already loaded. If it raises OSError(EBUSY) for GOING, the
    module stays, and callbacks that had agreed are called with COMING and LIVE again. A registered callback is not registered
    twice.
    """
    with _lock:
        if callback in _notifiers:
            return
        for module in loaded_modules.values():
            callback(ModuleState.COMING, module)
            callback(ModuleState.LIVE, module)
        _notifiers.insert(0 if first else len(_notifiers), callback)


def unregister_module_notifier(callback: Notifier) -> None:
    """Stop calling `callback`. Raises ValueError if it is not registered."""
    with _lock:
        _notifiers.remove(callback)
