from sandbox.compile.codegen import ProgramError as ProgramError
from sandbox.compile.program import prepare as prepare
from sandbox.loading.adoption import adopt as adopt
from sandbox.loading.linker import LinkError as LinkError
from sandbox.loading.load import load as load
from sandbox.loading.module import Module as Module
from sandbox.loading.module import ModuleState as ModuleState
from sandbox.loading.module import find_module as find_module
from sandbox.loading.module import modules as modules
from sandbox.loading.module import register_module_notifier as register_module_notifier
from sandbox.loading.module import unregister_module_notifier as unregister_module_notifier
from sandbox.loading.native_program import function as function
from sandbox.native.back.compile import compile_unit as compile_unit
from sandbox.symbols.table import symbol_table as symbol_table
from sandbox.threads.faults import SandboxFault as SandboxFault

IMPORTED: int
