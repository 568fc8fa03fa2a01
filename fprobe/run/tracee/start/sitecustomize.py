"""Imported by Python at its start under `fprobe run`; attaches the probes, then runs the user's own sitecustomize."""

import _signal  # type: ignore[import-not-found]  # `signal` takes milliseconds to import, in which Ctrl-C would raise
import os
import sys


def _in_main_interpreter() -> bool:
    """False in a sub-interpreter, which may not change how signals are handled. No file descriptor is set yet."""
    try:
        _signal.set_wakeup_fd(-1)
    except ValueError:
        return False
    return True


def _without_ourselves() -> str:
    """Remove this file's directory from `sys.path`, and return it."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib is slow to import
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100  # likewise
    return here


def _hide_environment() -> None:
    """Remove our variables from `os.environ`. They stay in the C library's environment, which children inherit by default."""
    data, encode = os.environ._data, os.environ.encodekey  # type: ignore[attr-defined]  # below putenv
    before = data.get(encode("FPROBE_RUN_PYTHONPATH"))
    for name in ("FPROBE_RUN", "FPROBE_RUN_PYTHONPATH", "PYTHONPATH"):
        data.pop(encode(name), None)
    if before is not None:
        data[encode("PYTHONPATH")] = before


def _arm() -> None:
    here = _without_ourselves()
    modules = [*sys.modules]
    try:
        packages = _private_packages(os.path.dirname(here))  # noqa: PTH120  # pathlib is slow to import
        starting = packages("fprobe.run.tracee.starting", fromlist=("start",))
    except (ImportError, SyntaxError) as error:
        _refuse(error)
    else:
        starting.start(here, modules, _hide_environment)
        packages.withdraw()


def _private_packages(tracee: str):  # type: ignore[no-untyped-def]  # its module is loaded here
    """Our packages, apart from what the program has by their names. `tracee`: the directory above this one."""
    from _frozen_importlib_external import PathFinder

    if PathFinder.find_spec("fprobe") is None:  # an environment without it, which lacks what it needs, too
        raise ModuleNotFoundError("No module named 'fprobe'")
    packages = _module(tracee, "private_packages").PrivatePackages(tracee.removesuffix("/fprobe/run/tracee"))
    packages.install()
    return packages


def _module(tracee: str, name: str):  # type: ignore[no-untyped-def]
    """A module of the directory above this one, which imports none of ours."""
    from _frozen_importlib_external import SourceFileLoader

    full = f"fprobe.run.tracee.{name}"
    module = type(sys)(full)
    SourceFileLoader(full, f"{tracee}/{name}.py").exec_module(module)
    return module


def _cover_children() -> None:
    """In a sub-interpreter, which has functions of its own that start programs."""
    here = _without_ourselves()
    address = os.environ.get("FPROBE_RUN", "")
    try:
        if address.count(":") == 2:
            _module(os.path.dirname(here), "children").cover(address, here)  # noqa: PTH120  # as above
    except (ImportError, SyntaxError, OSError):  # those that the main interpreter starts are covered
        pass
    _hide_environment()


def _refuse(error: Exception) -> None:
    """Report to the launcher that this Python cannot import fprobe, and restore the environment."""
    address = os.environ.pop("FPROBE_RUN", "0:0:0").split(":")
    before = os.environ.pop("FPROBE_RUN_PYTHONPATH", None)
    if before is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = before
    command = ", ".join(map(_quoted, getattr(sys, "orig_argv", [sys.executable, *sys.argv])))
    detail = f": {error}" if type(error) is ImportError else ""
    reason = _quoted(f"this Python cannot import fprobe ({type(error).__name__}{detail})")
    text = f'{{"pid": {os.getpid()}, "command": [{command}], "not_covered": {reason}}}\n'
    try:
        journal = os.open(f"/proc/{address[0]}/fd/{address[2]}", os.O_WRONLY | os.O_APPEND)
        os.write(journal, text.encode())
        os.close(journal)
    except OSError:
        pass


def _quoted(word: str) -> str:
    """The word as JSON; the program would see that its module is imported."""
    units = word.encode("utf-16-be", "surrogatepass").hex()
    return '"' + "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)) + '"'


def _users_own() -> None:
    """Run the user's sitecustomize. If there is none, raise the ImportError that `site` expects."""
    import importlib.machinery
    import importlib.util

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    own = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = own
    spec.loader.exec_module(own)


if __name__ == "sitecustomize" and _in_main_interpreter():
    interrupts = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if interrupts:  # an exception that is raised now would be a fatal error of `site`
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _arm()
    if interrupts:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    _users_own()
elif __name__ == "sitecustomize":  # the main interpreter's probes are hit in all of them
    _cover_children()
    _users_own()
