"""Imports our packages into a process that already runs, and calls the inside part. Its text is sent there and executed.

The program keeps its modules. Ours, and packages that they need and the program has not imported, are imported under names of
their own, with a prefix, by a `__import__` that only these modules have. Afterwards they are not in `sys.modules`: they are kept
for the next time, because functions of theirs are registered for good, with the C library for forks. Modules of the standard
library that were imported for ours go, too, unless the program has begun to use them.
"""

from __future__ import annotations

# All of these are in every process.
import _frozen_importlib_external as machinery
import builtins
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing need not be there
    from typing import Any

PREFIX = "_fprobe_attached"
_OURS = ("fprobe", "kprobes", "ftrace", "sandbox")
_NEEDED = ("llvmlite", "capstone", "elftools", "pydemumble")
_ATEXIT = f"{PREFIX}.atexit"
_DEBUGGER = f"{PREFIX}.pdb"
"""elftools imports pdb, but does not use it; from Python 3.13 on, that brings readline, which handles SIGWINCH."""
_TAKEN_WITHIN = 1000
_LEAVES_WITHIN = 100
"""Hundredths of a second."""
_LONGEST = 1900
_DESCRIPTOR = 1 << 10
"""Bytes of a thread's descriptor in which its number is looked for."""
_KEPT = "_fprobe_kept"
"""Attribute of `sys`: our modules, between attaching."""


class Reporter:
    """Reports to the process that has sent this, which reads our memory. `address`: where."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __call__(self, data: bytes) -> bool:
        """Report. Returns whether the reader has taken it, which it does at once. Raises OSError or ImportError."""
        with _OwnMemory() as memory:
            memory.write(self._address + 1, data[1:])
            memory.write(self._address, data[:1])  # last: it says that the others are there
            for _ in range(_TAKEN_WITHIN):
                if memory.read(self._address) == b"\0":
                    return True
                if _gate() is not None:
                    _gate().give_way()
                time.sleep(0.002)
        return False


class _OwnMemory:
    """The memory of this process: by its file or, where that is root's since the process has changed its user, by ctypes."""

    def __enter__(self) -> _OwnMemory:
        self._before: set[str] = set()
        self._file = -1
        try:
            self._file = os.open("/proc/thread-self/mem", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self._before = set(sys.modules)
            import ctypes

            self._move, self._read = ctypes.memmove, ctypes.string_at
        return self

    def write(self, address: int, data: bytes) -> None:
        if self._file >= 0:
            os.pwrite(self._file, data, address)
        else:
            self._move(address, data, len(data))

    def read(self, address: int) -> bytes:
        return os.pread(self._file, 1, address) if self._file >= 0 else self._read(address, 1)

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)
        elif f"{PREFIX}.fprobe" not in sys.modules:  # else they are taken out with all others
            for name in set(sys.modules) - self._before:
                if name.partition(".")[0] in ("ctypes", "_ctypes"):
                    sys.modules.pop(name, None)


class _Atexit:
    """The module atexit of our modules: what they register is called while they are attached only."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def register(self, call: Any, *arguments: Any, **options: Any) -> Any:
        self.calls.append((call, arguments, options))
        return call

    def unregister(self, call: Any) -> None:
        self.calls[:] = [each for each in self.calls if each[0] != call]

    def run(self) -> None:
        for call, arguments, options in reversed(self.calls):
            call(*arguments, **options)


class _Importer:
    """`__import__` for our modules. `paths`: directories with our packages and those that they need, in that `edition`."""

    def __init__(self, paths: list[str], edition: str) -> None:
        self.paths, self.edition = paths, edition
        package = type(sys)(PREFIX)
        package.__path__ = list(paths)
        self._import = builtins.__import__
        self._builtins = dict(vars(builtins), __import__=self)
        self.atexit = _Atexit()
        self.modules = {PREFIX: package, _DEBUGGER: type(sys)(_DEBUGGER)}
        self.finders: list[Any] = []
        """Entries of sys.meta_path that our modules have added."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """For sys.meta_path: finds modules whose names have the prefix."""
        if _gate() is not None:
            _gate().give_way()
        if not name.startswith(f"{PREFIX}."):
            return None
        spec = machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, machinery.SourceFileLoader):
            spec.loader = self._loader_for(spec.loader)
        return spec

    def _loader_for(self, loader: machinery.SourceFileLoader) -> machinery.SourceFileLoader:
        own = self._builtins

        class Loader(type(loader)):  # type: ignore[misc]
            def exec_module(self, module: Any) -> None:
                module.__builtins__ = own
                super().exec_module(module)

        return Loader(loader.name, loader.path)

    def __call__(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level or not self._is_private(name):
            return self._import(name, globals, locals, fromlist, level)
        full = f"{PREFIX}.{name}"
        if full in self.modules and PREFIX not in sys.modules:  # not attached: a function that is called around forks
            return self.modules[full if fromlist else f"{PREFIX}.{name.partition('.')[0]}"]
        if fromlist:
            return self._import(full, globals, locals, fromlist, 0)
        self._import(full, globals, locals, (), 0)
        return sys.modules[f"{PREFIX}.{name.partition('.')[0]}"]

    def _is_private(self, name: str) -> bool:
        """Whether a module is imported with the prefix."""
        top = name.partition(".")[0]
        if top in _NEEDED:
            return f"{PREFIX}.{top}" in {*sys.modules, *self.modules} or top not in sys.modules
        return top in _OURS or f"{PREFIX}.{name}" in (_ATEXIT, _DEBUGGER)


class _Entered:
    """Inside the block our modules can be imported."""

    def __init__(self, paths: list[str], edition: str) -> None:
        self._importer = vars(sys).get(_KEPT) or _Importer(paths, edition)
        if self._importer.paths != paths:
            raise RuntimeError("another installation of fprobe was attached to it before, and its modules stay")
        if getattr(self._importer, "edition", "") != edition:
            raise RuntimeError("fprobe was updated after it had been attached to it, and its former modules stay there")

    def __enter__(self) -> None:
        self._before = set(sys.modules)
        for name, module in self._importer.modules.items():
            sys.modules.setdefault(name, module)
        modules: dict[str, Any] = sys.modules
        modules[_ATEXIT] = self._importer.atexit  # as good as one
        sys.meta_path[:0] = [self._importer, *self._importer.finders]
        if "threading" not in sys.modules and _gate() is None:
            sys.modules.setdefault("threading", _threading_of_main())
        import atexit

        atexit.register(self._importer.atexit.run)

    def __exit__(self, *_: object) -> None:
        import atexit

        atexit.unregister(self._importer.atexit.run)
        finders = [each for each in sys.meta_path if type(each).__module__.startswith(f"{PREFIX}.")]
        self._importer.finders = finders
        sys.meta_path[:] = [each for each in sys.meta_path if each is not self._importer and each not in finders]
        new = {name: sys.modules[name] for name in set(sys.modules) - self._before}
        used = _used_by_others(set(new))
        for name, module in new.items():
            if name not in used:
                self._importer.modules[name] = module
                sys.modules.pop(name, None)
        setattr(sys, _KEPT, self._importer)


def _threading_of_main() -> Any:
    """The module threading, which takes the thread that imports it for the main one, before Python 3.13.

    At its end the main thread would wait for ours, and we for its end.
    """
    import _frozen_importlib
    import _thread

    importing: Any = _frozen_importlib
    spec = importing._find_spec("threading", None)
    if spec is None:
        raise ModuleNotFoundError("No module named 'threading'")
    module = importing.module_from_spec(spec)
    spec.loader.exec_module(module)
    main = module._main_thread
    if hasattr(main, "_tstate_lock"):
        module._shutdown_locks.discard(main._tstate_lock)
        main._tstate_lock = _thread.allocate_lock()
        main._tstate_lock.acquire()
        module._active.pop(main._ident, None)
        main._ident = _main_ident()
        if main._ident:
            module._shutdown_locks.add(main._tstate_lock)
            module._active[main._ident] = main
    main._native_id = os.getpid()
    return module


def _main_ident() -> int:
    """Python's number of the main thread: the address of its descriptor, which has the kernel's number; 0 if unknown."""
    import _thread

    with open("/proc/thread-self/mem", "rb", 0) as memory:  # noqa: PTH123  # pathlib need not be there

        def kernels(ident: int) -> list[int]:
            memory.seek(ident)
            data = memory.read(_DESCRIPTOR)
            return [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data), 4)]

        own, main = _thread.get_native_id(), os.getpid()
        places = [at for at, number in enumerate(kernels(_thread.get_ident())) if number == own]
        found = [ident for ident in sys._current_frames() if any(kernels(ident)[at] == main for at in places)]
    return found[0] if len(found) == 1 else 0


def _gate() -> Any:
    """The fork gate of an interpreter that was brought along (`fprobe.run.tracee.brought`); None in other programs."""
    return vars(sys).get("_fprobe_gate")


def _used_by_others(new: set[str]) -> set[str]:
    """The modules among `new` that the program uses, too. They stay: a second copy would have a state of its own.

    None of the program's code may run: modules that are loaded when they are used, and objects that warn, look like others.
    """
    others = {name: module for name, module in sys.modules.items() if name not in new}
    known = set(map(id, others.values()))
    owners = {}
    for name in new:
        if id(module := sys.modules[name]) not in known:  # else it is another name of a module
            owners[id(module)] = owners[id(_names_in(module))] = name
    found = set()
    for name, module in others.items():
        for value in list(_names_in(module).values()):
            used = owners.get(id(value)) or owners.get(_origin(value), "")
            if used and not used.startswith(f"{name}."):
                found.add(used)
    return found


def _names_in(module: object) -> dict[str, object]:
    """Its names; none if it is something without names in the table of modules."""
    try:
        names: dict[str, object] = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return names


def _origin(value: object) -> int:
    """What identifies the module that has made a function or a class: the address of its names. 0 if that is not known."""
    is_class = issubclass(type(value), type)
    functions = list(type.__dict__["__dict__"].__get__(value).values()) if is_class else [value]
    return next((id(each.__globals__) for each in functions if type(each) is type(_origin)), 0)


def enter(address: int, paths: list[str], edition: str, settings: dict[str, object]) -> None:
    """Attach, wait and leave. `address`: where to report; `paths`: of our packages; `edition`: the state of their files."""
    report = Reporter(address)
    gate = _gate()
    has_entered = gate is not None and gate.enter()  # the thread that brings an interpreter has, before
    try:
        if f"{PREFIX}.fprobe.run.tracee.attached" in sys.modules:
            sys.modules[f"{PREFIX}.fprobe.run.tracee.attached"].settle_forked()
        for _ in range(_LEAVES_WITHIN):
            if PREFIX not in sys.modules:
                break
            time.sleep(0.01)  # another one, which may be leaving since it was killed
        else:
            raise RuntimeError("another fprobe is attached to it; end that first")
        entered = _Entered(paths, edition)
        with entered:
            name = f"{PREFIX}.fprobe.run.tracee.attached"
            __import__(name)
            sys.modules[name].attach(report, settings, entered.__exit__)
    except BaseException as error:  # the program must not see it
        try:
            report(b"E" + _described(error).encode("utf-8", "backslashreplace")[:_LONGEST])
        except BaseException:  # without a descriptor nothing can be said
            return
    finally:
        if gate is not None:
            gate.leave() if has_entered else gate.forget()


def rehearse(paths: list[str], settings: dict[str, object], libraries: list[str], parent: int) -> None:
    """Do the same in a process that `parent` has made for that, and print the keys of the objects that were needed."""
    import json

    with _Entered(paths, ""):
        name = f"{PREFIX}.fprobe.run.tracee.rehearsing"
        __import__(name)
        print(json.dumps(sys.modules[name].rehearse(settings, libraries, parent)))


def _described(error: BaseException) -> str:
    """The error as text, with the place where it was raised."""
    if isinstance(error, RuntimeError):
        return str(error)
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    place = f" ({at.tb_frame.f_code.co_filename}:{at.tb_lineno})" if at is not None else ""
    return f"{type(error).__name__}: {error}{place}"
