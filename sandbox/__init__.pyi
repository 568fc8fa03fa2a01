from sandbox.adoption import adopt as adopt
from sandbox.faults import SandboxFault as SandboxFault
from sandbox.loading import load as load
from sandbox.module import Module as Module
from sandbox.module import ModuleState as ModuleState
from sandbox.module import find_module as find_module
from sandbox.module import modules as modules
from sandbox.module import register_module_notifier as register_module_notifier
from sandbox.module import unregister_module_notifier as unregister_module_notifier
from sandbox.native_program import function as function
from sandbox.symbols import symbol_table as symbol_table

IMPORTED: int
