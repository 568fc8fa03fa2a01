"""What the samples call: the demo program, or another, by the words of a command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sandbox


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--program` and `--call`."""
    parser.add_argument("--program", help="the program to load: LLVM IR, C, C++ (the demo)")
    parser.add_argument("--call", nargs="+", metavar=("FUNC", "ARG"), help="what to call in it (demo_main 1, or main)")


def prepared_call(given: argparse.Namespace) -> Callable[[], Any]:
    """Load the program; what makes the call. Raises OSError, LookupError or ValueError naming what is wrong."""
    module = _load(given.program)
    name, *values = given.call or (["main"] if given.program else ["demo_main", "1"])
    function = module[name]
    arguments = function.parse_arguments(values)
    return lambda: function(*arguments)


def _load(path: str | None) -> Any:
    if path is not None:
        return sandbox.load(Path(path))
    from sandbox import demo

    return sandbox.load(demo.source(), name=demo.NAME)
