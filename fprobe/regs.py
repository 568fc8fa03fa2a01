"""The registers of a hit: arguments, results, the instruction and stack pointers, numbers in vector registers."""

from ftrace.core.handlers.floats import float_argument as float_argument
from ftrace.core.handlers.floats import float_return_value as float_return_value
from ftrace.core.handlers.floats import regs_get_xmm as regs_get_xmm
from ftrace.core.handlers.floats import regs_set_xmm as regs_set_xmm
from ftrace.core.handlers.floats import set_float_argument as set_float_argument
from ftrace.core.handlers.floats import set_float_return_value as set_float_return_value
from ftrace.core.handlers.registers import instruction_pointer as instruction_pointer
from ftrace.core.handlers.registers import instruction_pointer_set as instruction_pointer_set
from ftrace.core.handlers.registers import kernel_stack_pointer as kernel_stack_pointer
from ftrace.core.handlers.registers import regs_get_kernel_argument as regs_get_kernel_argument
from ftrace.core.handlers.registers import regs_get_kernel_stack_nth as regs_get_kernel_stack_nth
from ftrace.core.handlers.registers import regs_return_value as regs_return_value
from ftrace.core.handlers.registers import regs_set_return_value as regs_set_return_value
from ftrace.hit.x86_64.pt_regs import pt_regs as pt_regs
