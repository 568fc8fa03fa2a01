"""Imports point one way, without circles, and every module can be imported by itself."""

from __future__ import annotations

import graphlib
import importlib
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from sandbox import native
from sandbox.lazy import exported
from tests.imports_of import imports

ROOT = Path(__file__).parent.parent
ORDER = ("sandbox", "ftrace", "kprobes", "fprobe")
SOURCES = [path for package in ORDER for path in sorted((ROOT / package).rglob("*.py"))]


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _all_imports() -> dict[str, set[str]]:
    return {_name(path): imports(path.read_text()) for path in SOURCES}


@pytest.mark.parametrize("package", ORDER)
def test_imports_point_from_fprobe_to_sandbox(package):
    above = set(ORDER[ORDER.index(package) + 1 :])
    wrong = {
        (module, imported)
        for module, found in _all_imports().items()
        for imported in found
        if module.split(".")[0] == package and imported.split(".")[0] in above
    }
    assert wrong == set()


FLOORS = ("ftrace.hit", "ftrace.core", "ftrace.ring_buffer", "ftrace.tracing")


@pytest.mark.parametrize("floor", FLOORS)
def test_no_floor_of_ftrace_imports_a_higher_one(floor):
    above = tuple(f"{higher}." for higher in FLOORS[FLOORS.index(floor) + 1 :])
    modules = {name: found for name, found in _all_imports().items() if name.startswith(f"{floor}.")}
    assert len(modules) > 5
    assert not [(name, each) for name, found in modules.items() for each in found if f"{each}.".startswith(above)]


def test_what_runs_at_a_hit_imports_only_native_code():
    """The lowest floor can neither allocate nor lock by way of what it imports."""
    allowed = ("ftrace.hit.", "sandbox.native.", "sandbox.threads.", "sandbox.x86_64.")
    wrong = [
        (name, each)
        for name, found in _all_imports().items()
        for each in found
        if name.startswith("ftrace.hit.")
        and each.startswith(("ftrace", "sandbox"))
        and not f"{each}.".startswith(allowed)
    ]
    assert wrong == []


def _folder(module: str) -> str:
    """The folder of a module; a module at the top of a package is a room of its own."""
    return module.rpartition(".")[0] if module.count(".") > 1 else module


def _folders(package: str) -> dict[str, set[str]]:
    """What the folders of a package import from folders that neither contain them nor are in them."""
    modules = {_name(path) for path in SOURCES if path.stem != "__init__"}
    folders: dict[str, set[str]] = {}
    for module, found in _all_imports().items():
        if module in modules and module.startswith(f"{package}."):
            here = f"{_folder(module)}."
            others = {f"{_folder(each)}." for each in found & modules if each.startswith(f"{package}.")}
            far = {each[:-1] for each in others if not each.startswith(here) and not here.startswith(each)}
            folders.setdefault(here[:-1], set()).update(far)
    return folders


@pytest.mark.parametrize("package", ORDER)
def test_there_are_no_circles_of_folders(package):
    folders = _folders(package)
    assert len(folders) > 8
    assert _circle(folders) is None


def test_the_picture_of_the_rooms_is_true():
    from tests import rooms

    assert rooms.BLOCK.findall(rooms.PAGE.read_text()) == [rooms.picture(ORDER, _folders)], (
        "run `python -m tests.rooms`"
    )


def test_launcher_and_program_share_only_the_session():
    """The launcher starts without the engine, and the program without the reports."""
    of_launcher = {name: found for name, found in _all_imports().items() if name.startswith("fprobe.run.launcher")}
    of_program = {name: found for name, found in _all_imports().items() if name.startswith("fprobe.run.tracee")}
    assert len(of_launcher) > 10 and len(of_program) > 5
    assert not [
        name for name, found in of_launcher.items() if any(each.startswith("fprobe.run.tracee") for each in found)
    ]
    assert not [
        name for name, found in of_program.items() if any(each.startswith("fprobe.run.launcher") for each in found)
    ]


def _circle(imports: dict[str, set[str]]) -> tuple[str, ...] | None:
    try:
        graphlib.TopologicalSorter({name: found & imports.keys() - {name} for name, found in imports.items()}).prepare()
    except graphlib.CycleError as error:
        return tuple(error.args[1])
    return None


def test_there_are_no_import_circles():
    packages = {_name(path) for path in SOURCES if path.stem == "__init__"}
    assert _circle({name: found - packages for name, found in _all_imports().items()}) is None


def test_circles_are_found_through_functions_and_type_checking():
    first = "def f():\n    from second import g\n"
    second = "if TYPE_CHECKING:\n    from third import h\n"
    found = {"first": imports(first), "second": imports(second), "third": imports("import first")}
    assert set(_circle(found)) == {"first", "second", "third"}


@pytest.mark.parametrize("package", ORDER)
def test_no_public_name_is_that_of_a_module(package):
    # Importing a.b binds b in a: whatever else has that name there would be hidden.
    modules = {path.stem for path in (ROOT / package).glob("*.py")}
    public = getattr(importlib.import_module(package), "__all__", ())
    assert modules & set(public) == set()


@pytest.mark.parametrize("package", ORDER)
def test_what_a_package_exports_is_there_and_listed(package):
    # The stubs name the modules in text that the parse above does not see.
    home = importlib.import_module(package)
    stub = exported((ROOT / package / "__init__.pyi").read_text())
    assert set(home.__all__) == set(stub) <= set(dir(home))
    below = ORDER[: ORDER.index(package) + 1]
    assert {module.partition(".")[0] for module in stub.values()} <= set(below)
    for name in stub:
        assert getattr(home, name) is not None


OPEN = {"sandbox.native": native.__all__, "fprobe.tracefs": ["mount", "tracefs"]}
"""Modules below the packages whose names are public, too."""
SHOWN = [
    ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.py")),
    *sorted((ROOT / "benchmarks").glob("*.py")),
]  # fmt: skip
INNER = {
    "attaching.py": {"Attached", "Settings", "read_maps"},  # the steps of attaching, one by one
    "compared.py": {"BoundHandler", "find_compiler"},  # a handler in C that is called as a native one is
    "compiling.py": {"ENTRY", "native", "runtime"},  # linking a handler, and starting the runtime, without a probe
    "events.py": {"event_registry"},  # the hits of an event's probe
    "libraries.py": {"runtime"},  # memory without that of the runtime
    "reference.py": {"SIGTRAP", "sync_cores"},  # patches text by hand
    "situations.py": {"contexts"},  # a call within the context of a signal's handler
    "sustained.py": {"NativeImage"},  # a native loop that is no handler
    "tracers.py": {"tracer"},  # the hits of a tracer's probe
}
"""Benchmarks that measure what has no public name, and what they import of it. `jump_coverage.py` examines rules of kprobes."""


@pytest.mark.parametrize("document", SHOWN, ids=lambda path: path.name)
def test_what_is_shown_to_users_imports_only_public_names(document):
    shown = re.findall(
        r"^ *from ((?:sandbox|ftrace|kprobes|fprobe)[\w.]*) import (\([^)]*\)|[^\n#(]+)", document.read_text(), re.M
    )
    names = [(home, name.split()[0]) for home, some in shown for name in some.strip("() \n").split(",") if name.strip()]
    public = OPEN | {package: [*importlib.import_module(package).__all__, "demo"] for package in ORDER}
    inner = {name for home, name in names if name not in public.get(home, ())}
    assert document.name == "jump_coverage.py" or inner == INNER.get(document.name, set())


def test_a_name_that_is_not_exported_is_refused():
    import fprobe

    with pytest.raises(AttributeError, match="module 'fprobe' has no attribute 'nothing'"):
        fprobe.nothing  # noqa: B018


_EACH = """
import importlib, sys
class Extras:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cffi", "numba", "pytest", "hypothesis", "numpy"):
            raise ImportError(f"{name} is an extra")
sys.meta_path.insert(0, Extras())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


@pytest.mark.stress
def test_every_module_imports_without_the_extras():
    # The pytest plugin is loaded by pytest alone.
    names = [_name(path) for path in SOURCES if path.stem not in ("__main__", "pytest_plugin")]
    done = subprocess.run(
        [sys.executable, "-c", _EACH, *names], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ORDER)
def test_a_package_alone_is_light(package):
    heavy = "[n for n in ('llvmlite', 'capstone', 'elftools', 'click', 'ctypes') if n in sys.modules]"
    source = f"import sys, {package}; print({heavy})"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


_START = """
import sandbox, sys
sandbox.IMPORTED += 10**10  # whatever was edited just now
from ftrace.core.runtime import runtime
runtime()
print(*sys.modules)
"""


def test_the_runtime_starts_from_the_cache_without_its_sources_and_without_what_makes_classes_slowly():
    for _ in range(2):
        command = [sys.executable, "-c", _START]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    heavy = {"inspect", "dataclasses", "ast", "linecache", "capstone", "elftools", "click"}
    heavy |= {"sandbox.native.back.fingerprint", "sandbox.native.front.frontend"}
    heavy |= {"ftrace.hit.assembly", "sandbox.symbols.libraries"}
    assert heavy & set(done.stdout.split()) == heavy & _imported_by("llvmlite.binding")


def _imported_by(name: str) -> set[str]:
    """From 3.13 on the standard library's own modules import more."""
    source = f"import sys, {name}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


_HANDLER = """
import sys
import fprobe
from fprobe.handlers.roles import ENTRY
from ftrace.core.handlers.resolve import native

@fprobe.native
def handler(fp, ip, ret_ip, regs, data):
    return 0

native(handler, ENTRY)
print(*sys.modules)
"""


def test_a_handler_from_the_cache_is_not_checked_again(tmp_path):
    file = tmp_path / "handler.py"
    file.write_text(_HANDLER)
    for _ in range(2):
        done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=60, check=True)
    heavy = {"sandbox.native.front.frontend", "sandbox.native.tree", "sandbox.native.back.lowering"}
    assert heavy & set(done.stdout.split()) == set()


def test_no_two_files_of_tests_have_one_name():
    """Outside of packages pytest imports them by their names alone, and does not collect the second."""
    files = Path(__file__).parent.rglob("test_*.py")
    names = Counter(path.name for path in files if not path.with_name("__init__.py").exists())
    assert [name for name, count in names.items() if count > 1] == []
