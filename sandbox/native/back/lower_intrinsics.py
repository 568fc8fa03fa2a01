"""Lowering intrinsics: atomics, fences, single instructions, system calls."""

from __future__ import annotations

from collections.abc import Callable

from sandbox.native.back.emitter import Emitter
from sandbox.native.back.module import register
from sandbox.native.tree import IntrinsicCall
from sandbox.native.types import Int, Pointer, Type

ORDERS = {"relaxed": "monotonic"}
MEMORY_CLOBBER = "~{memory},~{dirflag},~{fpsr},~{flags}"
SYSTEM_CALL_REGISTERS = ("rax", "rdi", "rsi", "rdx", "r10", "r8", "r9")
SUFFIX = {8: "b", 16: "w", 32: "l", 64: "q"}

Emit = Callable[[Emitter, IntrinsicCall, list[str]], str]


def emit(emitter: Emitter, node: IntrinsicCall, operands: list[str]) -> str:
    """Emits the intrinsic *node* on *operands*; returns its value, or an empty string for none."""
    return _EMITTERS[node.name](emitter, node, operands)


def _target(node: IntrinsicCall) -> Type:
    address = node.arguments[0].type
    assert isinstance(address, Pointer)
    return address.target


def _order(node: IntrinsicCall) -> str:
    return ORDERS.get(node.options[0], node.options[0])


def _load(emitter: Emitter, node: IntrinsicCall, operands: list[str]) -> str:
    target = _target(node)
    return emitter.value(f"load atomic {register(target)}, ptr {operands[0]} {_order(node)}, align {target.align}")


def _store(emitter: Emitter, node: IntrinsicCall, operands: list[str]) -> str:
    target, (address, value) = _target(node), operands
    emitter.emit(f"store atomic {register(target)} {value}, ptr {address} {_order(node)}, align {target.align}")
    return ""


def _volatile_load(emitter: Emitter, node: IntrinsicCall, operands: list[str]) -> str:
    return emitter.value(f"load volatile {register(_target(node))}, ptr {operands[0]}, align 1")


def _volatile_store(emitter: Emitter, node: IntrinsicCall, operands: list[str]) -> str:
    emitter.emit(f"store volatile {register(_target(node))} {operands[1]}, ptr {operands[0]}, align 1")
    return ""


def _read_modify_write(emitter: Emitter, node: IntrinsicCall, operands: list[str]) -> str:
    operation = {"atomic_exchange": "xchg"}.get(node.name, node.name.removeprefix("atomic_"))
    target, (address, value) = _target(node), operands
    return emitter.value(
        f"atomicrmw {operation} ptr {address}, {register(target)} {value} {_order(node)}, align {target.align}"
    )


def _compare_and_swap(emitter: Emitter, node: IntrinsicCall, operands: list[str]) -> str:
    target, order, (address, expected, new) = _target(node), _order(node), operands
    failure = {"release": "monotonic", "acq_rel": "acquire"}.get(order, order)
    word = register(target)
    pair = emitter.value(
        f"cmpxchg ptr {address}, {word} {expected}, {word} {new} {order} {failure}, align {target.align}"
    )
    return emitter.value(f"extractvalue {{ {word}, i1 }} {pair}, 1")


def _fence(emitter: Emitter, node: IntrinsicCall, _operands: list[str]) -> str:
    emitter.emit(f"fence {_order(node)}")
    return ""


def _signal_fence(emitter: Emitter, _node: IntrinsicCall, _operands: list[str]) -> str:
    emitter.emit('fence syncscope("singlethread") seq_cst')
    return ""


def _single(emitter: Emitter, node: IntrinsicCall, operands: list[str]) -> str:
    """One add or sub to memory without a lock prefix: no signal can come in between."""
    target, (address, value) = _target(node), operands
    assert isinstance(target, Int)
    word = register(target)
    instruction = f"{node.name.removeprefix('single_')}{SUFFIX[target.bits]} $1, $0"
    constraints = f"=*m,{'er' if target.bits == 64 else 'ir'},*m,{MEMORY_CLOBBER}"
    element = f"ptr elementtype({word}) {address}"
    emitter.emit(f'call void asm sideeffect "{instruction}", "{constraints}"({element}, {word} {value}, {element})')
    return ""


def _single_compare_and_swap(emitter: Emitter, node: IntrinsicCall, operands: list[str]) -> str:
    """cmpxchg without a lock prefix: no signal can come in between. What it found, in rax, says whether it exchanged.

    Its flag would say so too, but LLVM 22 loses a flag that an asm returns when it moves the branch to another block.
    """
    target, (address, expected, new) = _target(node), operands
    assert isinstance(target, Int)
    word = register(target)
    element = f"ptr elementtype({word}) {address}"
    instruction = f"cmpxchg{SUFFIX[target.bits]} $3, $1"
    constraints = f"={{rax}},=*m,0,r,*m,{MEMORY_CLOBBER}"
    arguments = f"{element}, {word} {expected}, {word} {new}, {element}"
    found = emitter.value(f'call {word} asm sideeffect "{instruction}", "{constraints}"({arguments})')
    return emitter.value(f"icmp eq {word} {found}, {expected}")


def _machine(declaration: str, call: str) -> Emit:
    name = declaration.split("@")[1].split("(")[0]

    def emit_call(emitter: Emitter, _node: IntrinsicCall, _operands: list[str]) -> str:
        emitter.module.declare(name, f"declare {declaration}")
        return emitter.value(f"call {call}")

    return emit_call


def _prefetch(emitter: Emitter, _node: IntrinsicCall, operands: list[str]) -> str:
    """prefetchw, which every x86-64 CPU decodes, and those that do not have it ignore. LLVM emits it only for some CPUs."""
    constraints = "*m,~{dirflag},~{fpsr},~{flags}"
    emitter.emit(f'call void asm sideeffect "prefetchw $0", "{constraints}"(ptr elementtype(i8) {operands[0]})')
    return ""


def _pause(emitter: Emitter, _node: IntrinsicCall, _operands: list[str]) -> str:
    emitter.emit('call void asm sideeffect "pause", "~{memory},~{dirflag},~{fpsr},~{flags}"()')
    return ""


def _trap(emitter: Emitter, _node: IntrinsicCall, _operands: list[str]) -> str:
    emitter.module.declare("llvm.trap", "declare void @llvm.trap()")
    emitter.emit("call void @llvm.trap()")
    emitter.terminate("unreachable")
    return ""


def _expect(expected: str) -> Emit:
    def emit_expect(emitter: Emitter, _node: IntrinsicCall, operands: list[str]) -> str:
        emitter.module.declare("llvm.expect.i1", "declare i1 @llvm.expect.i1(i1, i1)")
        return emitter.value(f"call i1 @llvm.expect.i1(i1 {operands[0]}, i1 {expected})")

    return emit_expect


def _read_fs(emitter: Emitter, _node: IntrinsicCall, operands: list[str]) -> str:
    address = emitter.value(f"inttoptr i64 {operands[0]} to ptr addrspace(257)")
    return emitter.value(f"load i64, ptr addrspace(257) {address}, align 1")


def _address(name: str) -> Emit:
    def emit_address(emitter: Emitter, _node: IntrinsicCall, _operands: list[str]) -> str:
        suffix = ".p0" if name == "llvm.frameaddress" else ""
        emitter.module.declare(name, f"declare ptr @{name}{suffix}(i32)")
        pointer = emitter.value(f"call ptr @{name}{suffix}(i32 0)")
        return emitter.value(f"ptrtoint ptr {pointer} to i64")

    return emit_address


def _stack_pointer(emitter: Emitter, _node: IntrinsicCall, _operands: list[str]) -> str:
    return emitter.value('call i64 asm sideeffect "movq %rsp, $0", "=r,~{dirflag},~{fpsr},~{flags}"()')


def _bits(name: str, flags: str) -> Emit:
    def emit_bits(emitter: Emitter, node: IntrinsicCall, operands: list[str]) -> str:
        word = register(node.type)
        if name == "bswap" and word == "i8":
            return operands[0]
        symbol, extra = f"llvm.{name}.{word}", ", i1" if flags else ""
        emitter.module.declare(symbol, f"declare {word} @{symbol}({word}{extra})")
        return emitter.value(f"call {word} @{symbol}({word} {operands[0]}{flags})")

    return emit_bits


def _multiply_high(emitter: Emitter, _node: IntrinsicCall, operands: list[str]) -> str:
    left, right = (emitter.value(f"zext i64 {operand} to i128") for operand in operands)
    product = emitter.value(f"mul nuw i128 {left}, {right}")
    return emitter.value(f"trunc i128 {emitter.value(f'lshr i128 {product}, 64')} to i64")


def _syscall(emitter: Emitter, _node: IntrinsicCall, operands: list[str]) -> str:
    inputs = ",".join(f"{{{name}}}" for name in SYSTEM_CALL_REGISTERS[: len(operands)])
    constraints = f"={{rax}},{inputs},~{{rcx}},~{{r11}},{MEMORY_CLOBBER}"
    arguments = ", ".join(f"i64 {operand}" for operand in operands)
    return emitter.value(f'call i64 asm sideeffect "syscall", "{constraints}"({arguments})')


def _zero_fill(emitter: Emitter, node: IntrinsicCall, operands: list[str]) -> str:
    zero_fill(emitter, operands[0], _target(node).size)
    return ""


_SINGLE_STORES = 8


def zero_fill(emitter: Emitter, address: str, size: int) -> None:
    """Zeroes *size* bytes, without calling anything.

    A few words by single stores: LLVM drops those whose word is written before it is read, but never part of a memset.
    """
    if size <= 8 * _SINGLE_STORES and not size % 8:
        for offset in range(0, size, 8):
            word = emitter.value(f"getelementptr i8, ptr {address}, i64 {offset}") if offset else address
            emitter.emit(f"store i64 0, ptr {word}, align 1")
        return
    emitter.module.declare(
        "llvm.memset.inline", "declare void @llvm.memset.inline.p0.i64(ptr, i8, i64 immarg, i1 immarg)"
    )
    emitter.emit(f"call void @llvm.memset.inline.p0.i64(ptr {address}, i8 0, i64 {size}, i1 false)")


def _copy(emitter: Emitter, node: IntrinsicCall, operands: list[str]) -> str:
    emitter.module.declare(
        "llvm.memcpy.inline", "declare void @llvm.memcpy.inline.p0.p0.i64(ptr, ptr, i64 immarg, i1 immarg)"
    )
    arguments = f"ptr {operands[0]}, ptr {operands[1]}, i64 {_target(node).size}, i1 false"
    emitter.emit(f"call void @llvm.memcpy.inline.p0.p0.i64({arguments})")
    return ""


_EMITTERS: dict[str, Emit] = {
    **{f"atomic_{name}": _read_modify_write for name in ("add", "sub", "and", "or", "xor", "exchange")},
    "load": _load,
    "store": _store,
    "atomic_cas": _compare_and_swap,
    "fence": _fence,
    "signal_fence": _signal_fence,
    "volatile_load": _volatile_load,
    "volatile_store": _volatile_store,
    "single_add": _single,
    "single_sub": _single,
    "single_cas": _single_compare_and_swap,
    "rdtsc": _machine("i64 @llvm.readcyclecounter()", "i64 @llvm.readcyclecounter()"),
    "pause": _pause,
    "prefetch": _prefetch,
    "trap": _trap,
    "likely": _expect("true"),
    "unlikely": _expect("false"),
    "read_fs": _read_fs,
    "frame_address": _address("llvm.frameaddress"),
    "return_address": _address("llvm.returnaddress"),
    "stack_pointer": _stack_pointer,
    "popcount": _bits("ctpop", ""),
    "leading_zeros": _bits("ctlz", ", i1 false"),
    "trailing_zeros": _bits("cttz", ", i1 false"),
    "byteswap": _bits("bswap", ""),
    "multiply_high": _multiply_high,
    "syscall": _syscall,
    "zero_fill": _zero_fill,
    "copy": _copy,
}
