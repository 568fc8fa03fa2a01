"""Keeps our packages out of the program's way: its `import sandbox` finds its own module, and ours still find each other.

The start file loads this text before any module of ours. Ours get an `__import__` of their own, which finds the modules of our
packages in a table, and loads them from where this file is. They are in `sys.modules` until the probes are attached. After that,
what the program imports is searched as ever: where its path leads to our files, it gets the modules that exist.
"""

from __future__ import annotations

# All of these are in every process.
import _frozen_importlib as bootstrap
import _frozen_importlib_external as machinery
import _thread
import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes milliseconds to import
    from typing import Any

_LOADERS = "_get_supported_file_loaders"
OURS = ("fprobe", "kprobes", "ftrace", "sandbox")


class _Loader:
    """Loads a module of ours, or hands out the one that exists.

    It is no SourceFileLoader: pytest would take its own loader instead, and make a second module.
    """

    def __init__(self, loader: Any, packages: PrivatePackages) -> None:
        self._loader, self._packages = loader, packages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._packages.modules.get(spec.name)

    def exec_module(self, module: Any) -> None:
        name = module.__name__
        packages = self._packages
        if packages.modules.get(name) is module:
            packages.lend(name, module)
            return
        module.__builtins__ = packages.builtins
        packages.modules[name] = module
        try:
            self._loader.exec_module(module)
        except BaseException:
            packages.modules.pop(name, None)
            raise
        packages.specs[name] = module.__spec__


class PrivatePackages:
    """Our packages in a program. `root`: the directory that has them. Raises ImportError if this Python lacks what that needs."""

    def __init__(self, root: str) -> None:
        if not hasattr(machinery, _LOADERS):
            raise ImportError(f"this Python has no _frozen_importlib_external.{_LOADERS}, which fprobe uses")
        self._root = os.path.realpath(root)
        self._import = builtins.__import__
        self._lock: Any = _thread.RLock()
        self._finders: dict[str, Any] = {}
        """Path -> its finder: a new one would list the directory again for each module."""
        self._is_shown = True
        """Whether all of ours are in sys.modules, until the probes are attached."""
        self.builtins = dict(vars(builtins), __import__=self)
        self.modules: dict[str, Any] = {}
        self.specs: dict[str, Any] = {}
        os.register_at_fork(after_in_child=self._renew)

    def install(self) -> None:
        """Begin to load our packages, and to find them for the program."""
        sys.path_hooks.insert(0, self._finder)
        for path in [*sys.path_importer_cache]:
            if self._is_ours(path):
                del sys.path_importer_cache[path]
        for name in OURS:
            self._load(name)

    def withdraw(self) -> None:
        """Take our modules out of sys.modules. What the program has by the same names is found from now on."""
        self._is_shown = False
        for name, module in self.modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]

    def lend(self, name: str, module: Any) -> None:
        """The program imports a module of ours that exists: put it and those below it into sys.modules.

        Raises ImportError if it is a package whose use needs another one of ours, in whose place the program finds its own.
        """
        module.__spec__ = self.specs[name]
        if name in OURS:
            self.modules["fprobe.neighbours"].check(name)
        for each, known in [*self.modules.items()]:
            if each.startswith(f"{name}."):
                sys.modules[each] = known

    def __call__(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        """`__import__` of our modules."""
        top = name.partition(".")[0]
        if level or top not in OURS:
            return self._import(name, globals, locals, fromlist, level)
        module = self._load(name)
        for each in fromlist or ():
            if not hasattr(module, each) and hasattr(module, "__path__") and self._found(f"{name}.{each}"):
                self._load(f"{name}.{each}")
        return module if fromlist else self.modules[top]

    def _load(self, name: str) -> Any:
        with self._lock:  # also where it is there: another thread may be loading it
            if name in self.modules:
                return self.modules[name]
            package, _, last = name.rpartition(".")
            if package:
                self._load(package)
            if (module := self.modules.get(name)) is None:  # the package may have loaded it
                module = self._load_new(name)
                if package:
                    setattr(self.modules[package], last, module)
            return module

    def _load_new(self, name: str) -> Any:
        spec = self._found(name)
        if spec is None:
            if self._is_lent(name):
                return self._import(name, fromlist=("_",))  # raises, and says where a module is that has moved
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        module = bootstrap.module_from_spec(spec)
        kept = self._is_shown or self._is_lent(name)
        before = sys.modules.get(name)
        if kept or before is None:
            sys.modules[name] = module  # also for a moment: making a dataclass looks there
        is_done = False
        try:
            spec.loader.exec_module(module)
            is_done = True
        finally:
            if not (kept and is_done) and sys.modules.get(name) is module:
                del sys.modules[name]
        return module

    def _is_lent(self, name: str) -> bool:
        top = name.partition(".")[0]
        return top in self.modules and sys.modules.get(top) is self.modules[top]

    def _found(self, name: str) -> Any:
        """The spec of a module of ours; None if there is none."""
        package = name.rpartition(".")[0]
        paths = self.modules[package].__path__ if package else [self._root]
        return next((spec for path in paths if (spec := self._finder_of_ours(path).find_spec(name)) is not None), None)

    def _finder_of_ours(self, path: str) -> Any:
        if path not in self._finders:
            self._finders[path] = self._finder(path)
        return self._finders[path]

    def _is_ours(self, path: str) -> bool:
        """Whether this entry of a path is our root, or below one of our packages."""
        real = os.path.realpath(path or ".") if isinstance(path, str) else ""
        return real == self._root or f"{real}/".startswith(tuple(f"{self._root}/{name}/" for name in OURS))

    def _finder(self, path: str) -> Any:
        """For sys.path_hooks. Raises ImportError for a path that is not ours."""
        if not self._is_ours(path):
            raise ImportError("not a directory with packages of fprobe", path=path)
        packages = self

        class Finder(machinery.FileFinder):
            def find_spec(self, fullname: str, target: Any = None) -> Any:
                spec: Any = super().find_spec(fullname, target)
                if spec is not None and fullname.partition(".")[0] in OURS and spec.loader is not None:
                    spec.loader = _Loader(spec.loader, packages)
                return spec

        loaders: Any = getattr(machinery, _LOADERS)()
        return Finder(path, *loaders)

    def _renew(self) -> None:
        """In the child of a fork: another thread may have had the lock."""
        self._lock = _thread.RLock()
