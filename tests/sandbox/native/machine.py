"""Loads compiled units into this process and calls their functions through ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import binding

from sandbox.native import NativeFunction, Unit
from sandbox.native.compile import compile_unit, target_machine
from sandbox.native.structs import ctypes_type


class Loaded:
    """The functions of a compiled unit, callable under their names; alive as long as this object."""

    def __init__(self, unit: Unit, opt: int = 2) -> None:
        self.object = compile_unit(unit, opt)
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target_machine(opt))
        self._engine.add_object_file(binding.ObjectFileRef.from_data(self.object))
        self._engine.finalize_object()
        self._functions = {function.name: function for function in unit.functions}

    def __getattr__(self, name: str) -> Any:
        signature = self._functions[name].signature
        types = [ctypes_type(type_) for type_ in (signature.result, *signature.parameters)]
        call = ctypes.CFUNCTYPE(*types)(self._engine.get_function_address(name))
        call.unit = self  # without its engine the code is unmapped
        return call

    def variable(self, name: str, type_: Any) -> Any:
        """The unit's variable *name*, as a ctypes object of the layout of *type_*."""
        return ctypes_type(type_).from_address(self._engine.get_global_value_address(name))


def load_functions(*functions: NativeFunction, opt: int = 2) -> Loaded:
    """*functions* compiled and loaded."""
    return Loaded(Unit("test", list(functions)), opt)
