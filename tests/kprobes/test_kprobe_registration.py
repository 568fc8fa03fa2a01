"""Registering kprobes: each check with its errno, in its order (KP-5..21), and what stays in the object (KP-9)."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

import ctypes
import errno
import threading

import pytest
import raw_masks
from isolation import isolated
from programs import BASIC, assert_untouched, basic, site_of

import kprobes
import sandbox
from kprobes import KPROBE_FLAG_DISABLED, KPROBE_FLAG_FTRACE, KPROBE_FLAG_GONE, KPROBE_FLAG_ON_FUNC_ENTRY, optimization
from kprobes.checks import kprobe_add_area_blacklist, kprobe_add_ksym_blacklist, within_kprobe_blacklist
from kprobes.events.debugfs import read_kprobes_enabled, write_kprobes_enabled

ENDBR = """
module asm ".text"
module asm ".globl guarded"
module asm ".type guarded,@function"
module asm "guarded: endbr64"
module asm "lea 1(%rdi), %rax"
module asm "ret"
module asm ".size guarded, .-guarded"
module asm ".globl odd"
module asm ".type odd,@function"
module asm "odd: pop %rax"
module asm "ljmp *(%rsp)"
module asm "cli"
module asm "mov %eax, %ss"
module asm "lcall *(%rax)"
module asm "int3"
module asm ".byte 0x66,0x66,0x66,0x66,0x66,0x66,0x2e,0x0f,0x1f,0x84,0,0,0,0,0"
module asm "nop"
module asm ".byte 0x06"
module asm "nop"
module asm ".size odd, .-odd"
"""


def refused(**where):
    """The errno and the sentence with which a kprobe is refused."""
    with pytest.raises(OSError) as caught:
        kprobes.register_kprobe(kprobes.kprobe(**where))
    return caught.value.errno, str(caught.value)


@isolated(shared=True)
def test_kp5_kp6_addr_or_symbol():
    module = basic()
    address = module.symbol("leaf").address
    assert refused()[0] == errno.EINVAL
    assert refused(addr=address, symbol_name="leaf")[0] == errno.EINVAL
    number, text = refused(symbol_name="no_such_function")
    assert number == errno.ENOENT
    assert "no_such_function" in text
    assert refused(symbol_name="libz_that_is_not:deflate")[0] == errno.ENOENT
    assert refused(addr=16)[0] == errno.ENOENT
    buffer = ctypes.create_string_buffer(64)
    assert refused(addr=ctypes.addressof(buffer))[0] == errno.ENOENT
    number, text = refused(symbol_name="leaf", offset=1 << 30)
    assert number in (errno.ENOENT, errno.EINVAL) and "leaf+0x40000000 (0x" in text


@isolated(shared=True)
def test_kp7_an_offset_beyond_the_symbol_is_in_the_next_one():
    module = basic()
    leaf, other = module.symbol("leaf"), module.symbol("other")
    p = kprobes.kprobe(symbol_name="leaf", offset=other.address - leaf.address, pre_handler=lambda p, regs: 0)
    kprobes.register_kprobe(p)
    assert p.addr == other.address
    assert p.flags == KPROBE_FLAG_FTRACE | KPROBE_FLAG_ON_FUNC_ENTRY
    kprobes.unregister_kprobe(p)


@isolated(shared=True)
@pytest.mark.parametrize("offset", [0, 4])
def test_kp8_behind_endbr64_is_the_entry(offset):
    sandbox.load(ENDBR, name="guarded")
    p = kprobes.kprobe(symbol_name="guarded", offset=offset)
    kprobes.register_kprobe(p)
    assert p.addr == p.place.symbol.address + 4
    assert p.flags == KPROBE_FLAG_ON_FUNC_ENTRY
    kprobes.unregister_kprobe(p)


@isolated(shared=True)
def test_kp9_addr_and_disabled_stay():
    module = basic()
    p = kprobes.kprobe(symbol_name="leaf", offset=5)
    kprobes.register_kprobe(p)
    address = module.symbol("leaf").address + 5
    assert p.addr == address
    kprobes.unregister_kprobe(p)
    assert (p.addr, p.flags & KPROBE_FLAG_DISABLED) == (address, KPROBE_FLAG_DISABLED)
    with pytest.raises(OSError, match="both") as caught:
        kprobes.register_kprobe(p)
    assert caught.value.errno == errno.EINVAL
    p.symbol_name, p.offset = None, 0
    kprobes.register_kprobe(p)
    assert p.is_off
    kprobes.unregister_kprobe(p)
    failing = kprobes.kprobe(symbol_name="leaf", offset=6)
    with pytest.raises(OSError, match="first byte"):
        kprobes.register_kprobe(failing)
    assert failing.addr == address + 1


@isolated(shared=True)
def test_kp10_registered_already():
    basic()
    p = kprobes.kprobe(symbol_name="leaf", offset=5)
    kprobes.register_kprobe(p)
    p.symbol_name, p.offset = None, 0
    with pytest.raises(OSError, match="already registered") as caught:
        kprobes.register_kprobe(p)
    assert caught.value.errno == errno.EINVAL
    kprobes.unregister_kprobe(p)


@isolated(shared=True)
def test_kp12_kp18_the_stub_and_its_middle():
    module = basic()
    site = site_of(module, "leaf")
    for inside in range(1, 5):
        assert refused(addr=site + inside)[0] == errno.EILSEQ
    p = kprobes.kprobe(addr=site)
    kprobes.register_kprobe(p)
    assert p.flags & KPROBE_FLAG_FTRACE
    for inside in range(1, 5):
        assert refused(addr=site + inside)[0] == errno.EILSEQ, "through the patched stub"
    kprobes.unregister_kprobe(p)


@isolated(shared=True)
@pytest.mark.parametrize("how", [0, 1])
def test_kp18_boundaries_are_found_through_probes(how):
    """Through breakpoints, and through jumps."""
    optimization.set_kprobes_optimization(how)
    module = basic()
    start = module.symbol("leaf").address
    probes = [kprobes.kprobe(addr=start + offset, pre_handler=lambda p, regs: 0) for offset in (5, 9)]
    kprobes.register_kprobes(probes)
    kprobes.wait_for_kprobe_optimizer()
    number, text = refused(addr=start + 7)
    assert number == errno.EILSEQ
    assert "lea rax, [rdi + 1]" in text
    assert text.rstrip().endswith("^")
    kprobes.register_kprobe(again := kprobes.kprobe(addr=start + 9))
    kprobes.unregister_kprobes([*probes, again])


@isolated(shared=True)
def test_kp19_kp20_instructions_that_cannot_be_probed():
    module = sandbox.load(ENDBR, name="odd")
    start = module.symbol("odd").address
    found = {offset: refused(addr=start + offset)[0] for offset in (1, 4, 5, 7, 9, 10)}
    assert found == {
        1: errno.EOPNOTSUPP,  # ljmp *(%rsp)
        4: errno.EOPNOTSUPP,  # cli
        5: errno.EINVAL,  # mov %eax, %ss
        7: errno.EOPNOTSUPP,  # lcall
        9: errno.EILSEQ,  # int3
        10: errno.ENOSPC,  # 15 bytes
    }
    kprobes.register_kprobe(p := kprobes.kprobe(addr=start + 25))
    assert refused(addr=start + 27)[0] == errno.EILSEQ, "behind bytes that are no instruction"
    kprobes.unregister_kprobe(p)


@isolated(shared=True)
def test_a_breakpoint_of_somebody_else_is_refused():
    from sandbox.memory.mappings import write_through_kernel

    module = basic()
    address = module.symbol("leaf").address + 5
    kept = ctypes.string_at(address, 1)
    write_through_kernel(address, b"\xcc")
    assert refused(addr=address)[0] in (errno.EINVAL, errno.EILSEQ)
    write_through_kernel(address, kept)
    kprobes.register_kprobe(p := kprobes.kprobe(addr=address))
    assert module["twice"](5) == 7
    kprobes.unregister_kprobe(p)


@isolated(shared=True)
def test_kp13_kp14_data_our_own_code_and_the_blacklist():
    from kprobes.hit.runtime import kprobe_runtime

    module = basic()
    data = next(symbol.address for symbol in module.data if symbol.name == "sink")
    assert refused(addr=data)[0] in (errno.EINVAL, errno.ENOENT)
    number, text = refused(addr=kprobe_runtime().image.address("kprobe_trap"))
    assert number == errno.EINVAL
    assert "hit path" in text
    assert refused(symbol_name="libc.so.6:__errno_location")[0] == errno.EINVAL
    leaf = module.symbol("leaf")
    assert kprobe_add_ksym_blacklist(leaf.address) == leaf.size
    assert refused(addr=leaf.address + 5) == (errno.EINVAL, str(refused(addr=leaf.address + 5)[1]))
    assert f"{leaf.address:#018x}-{leaf.end:#018x}\tleaf\n" in kprobes.kprobes_blacklist()
    with pytest.raises(OSError, match="not in a known function"):
        kprobe_add_ksym_blacklist(16)
    other, last = module.symbol("other"), module.symbol("twice")
    kprobe_add_area_blacklist(other.address, last.end)
    assert within_kprobe_blacklist(other.address)
    assert within_kprobe_blacklist(last.address)
    assert not within_kprobe_blacklist(module.symbol("apply").address)
    module.unload()
    assert "leaf" not in kprobes.kprobes_blacklist()


@isolated(shared=True)
def test_kp22_kp23_nokprobe_and_parts_of_such_functions():
    text = BASIC.replace("@leaf(i64 %x) noinline", '@leaf(i64 %x) noinline "nokprobe"')
    text += '\ndefine i64 @"leaf.part.0"(i64 %x) noinline { ret i64 %x }\n'
    sandbox.load(text, name="marked")
    for symbol in ("leaf", "leaf.part.0"):
        number, said = refused(symbol_name=symbol)
        assert number == errno.EINVAL
        assert "blacklist" in said
    kprobes.register_kprobe(p := kprobes.kprobe(symbol_name="other"))
    kprobes.unregister_kprobe(p)


@isolated(shared=True)
def test_kp21_no_handler_at_all():
    module = basic()
    p = kprobes.kprobe(symbol_name="leaf", offset=5)
    kprobes.register_kprobe(p)
    assert module["twice"](5) == 7
    assert (p.opcode, p.ainsn.hex()) == (0x48, "488d4701")
    kprobes.unregister_kprobe(p)


@isolated(shared=True)
def test_a_thread_that_blocks_sigtrap_is_named():
    module = basic()
    ready, done = threading.Event(), threading.Event()

    def block():
        raw_masks.block_sigtrap()
        ready.set()
        done.wait()

    thread = threading.Thread(target=block, name="deaf")
    thread.start()
    ready.wait()
    number, text = refused(symbol_name="leaf", offset=5)
    assert number == errno.EBUSY
    assert str(thread.native_id) in text
    done.set()
    thread.join()
    kprobes.register_kprobe(p := kprobes.kprobe(symbol_name="leaf", offset=5))
    assert module["twice"](5) == 7
    kprobes.unregister_kprobe(p)


@isolated(shared=True)
@pytest.mark.parametrize("wrong", [{"handler": 5}, {"maxactive": "9"}, None])
def test_kp58_a_batch_is_all_or_nothing_whatever_is_wrong(wrong):
    """Only an OSError took the first ones back: a TypeError left them registered."""
    module = basic()
    kretprobe = kprobes.kretprobe(symbol_name="leaf", handler=lambda *given: None)
    bad = None if wrong is None else kprobes.kretprobe(**{"symbol_name": "other", "handler": print, **wrong})
    with pytest.raises((TypeError, AttributeError)):
        kprobes.register_kretprobes([kretprobe, bad])
    kprobe = kprobes.kprobe(symbol_name="leaf", offset=5, pre_handler=lambda *given: 0)
    bad = None if wrong is None else kprobes.kprobe(symbol_name="other", offset=5, pre_handler=5)
    with pytest.raises((TypeError, AttributeError)):
        kprobes.register_kprobes([kprobe, bad])
    assert kprobes.kprobes_list() == "" and not kretprobe.registered and not kprobe.registered
    assert module["twice"](5) == 7
    assert_untouched()


@isolated(shared=True)
def test_kp58_a_batch_is_all_or_nothing():
    module = basic()
    good = [kprobes.kprobe(symbol_name="leaf", offset=5), kprobes.kprobe(symbol_name="other", offset=5)]
    bad = kprobes.kprobe(symbol_name="leaf", offset=6)
    with pytest.raises(OSError, match="first byte"):
        kprobes.register_kprobes([*good, bad])
    assert kprobes.kprobes_list() == ""
    assert ctypes.string_at(module.symbol("leaf").address + 5, 1) == b"\x48"
    for count in (0, -1):
        with pytest.raises(OSError) as caught:
            kprobes.register_kprobes(good, count)
        assert caught.value.errno == errno.EINVAL
    for p in good:
        p.addr, p.flags = None, 0
    kprobes.register_kprobes([*good, bad], 2)
    stranger = kprobes.kprobe(addr=5)
    kprobes.unregister_kprobes([good[0], stranger, good[1]])
    assert stranger.addr is None
    assert good[0].addr is not None
    assert kprobes.kprobes_list() == ""
    kprobes.unregister_kprobes(good, 0)


@isolated(shared=True)
def test_kp55_disable_and_enable():
    module = basic()
    hits = []
    p = kprobes.kprobe(symbol_name="leaf", offset=5, pre_handler=lambda p, regs: hits.append(1))
    for function in (kprobes.disable_kprobe, kprobes.enable_kprobe):
        with pytest.raises(OSError) as caught:
            function(p)
        assert caught.value.errno == errno.EINVAL
    kprobes.register_kprobe(p)
    kprobes.disable_kprobe(p)
    kprobes.disable_kprobe(p)
    assert "[DISABLED]" in kprobes.kprobes_list()
    module["twice"](1)
    assert hits == []
    kprobes.enable_kprobe(p)
    kprobes.enable_kprobe(p)
    module["twice"](1)
    assert hits == [1, 1]
    kprobes.unregister_kprobe(p)


@isolated(shared=True)
def test_kp95_kp96_the_module_goes():
    module = basic()
    hits = []
    probes = [
        kprobes.kprobe(symbol_name="leaf", offset=offset, pre_handler=lambda p, regs: hits.append(1))
        for offset in (0, 5)
    ]
    kprobes.register_kprobes(probes)
    returns = kprobes.kretprobe(symbol_name="twice", handler=lambda ri, regs: hits.append(2))
    kprobes.register_kretprobe(returns)
    module.unload()
    assert all(p.flags & KPROBE_FLAG_GONE for p in (*probes, returns.kp))
    assert kprobes.kprobes_list().count("[GONE]") == 3
    with pytest.raises(OSError, match="has been unloaded") as caught:
        kprobes.enable_kprobe(probes[0])
    assert caught.value.errno == errno.EINVAL
    again = basic()
    with kprobes.attach("leaf+5", pre=lambda p, regs: hits.append(3)):
        assert again["twice"](1) == 3
    assert hits == [3, 3]
    kprobes.unregister_kprobes(probes)
    kprobes.unregister_kretprobe(returns)
    assert kprobes.kprobes_list() == ""


@isolated(shared=True)
def test_a_module_with_a_call_that_waits_for_its_return_stays():
    module = basic()
    seen = []

    def at_leaf(p, regs):
        with pytest.raises(OSError, match=r"in use|being called"):
            module.unload()
        seen.append(1)

    with kprobes.attach_return("twice", lambda ri, regs: seen.append(2)), kprobes.attach("leaf+5", pre=at_leaf):
        assert module["twice"](1) == 3
    assert seen == [1, 1, 2]


@isolated(shared=True)
def test_kp59_kp92_the_global_switch():
    module = basic()
    hits = []
    probes = [
        kprobes.kprobe(symbol_name="leaf", offset=offset, pre_handler=lambda p, regs: hits.append(1))
        for offset in (0, 5)
    ]
    kprobes.register_kprobes(probes)
    write_kprobes_enabled("off\n")
    assert read_kprobes_enabled() == "0\n"
    module["twice"](1)
    late = kprobes.kprobe(symbol_name="leaf", offset=9, pre_handler=lambda p, regs: hits.append(2))
    kprobes.register_kprobe(late)
    kprobes.disable_kprobe(probes[0])
    kprobes.enable_kprobe(probes[0])  # KP-56: takes effect when kprobes are on again
    module["twice"](1)
    assert hits == []
    assert "[DISABLED]" not in kprobes.kprobes_list()
    write_kprobes_enabled("Y")
    module["leaf"](1)
    assert hits == [1, 1, 2]
    for word in ("", "x", "2", "ox"):
        with pytest.raises(OSError) as caught:
            write_kprobes_enabled(word)
        assert caught.value.errno == errno.EINVAL
    kprobes.unregister_kprobes([*probes, late])


@isolated(shared=True)
def test_kp91_the_list():
    module = basic()
    optimization.set_kprobes_optimization(0)
    start = module.symbol("leaf").address
    with kprobes.attach("leaf+5"), kprobes.attach("leaf"), kprobes.attach_return("twice"):
        twice = module.symbol("twice").address
        assert kprobes.kprobes_list() == (
            f"{start + 5:016x}  k  leaf+0x5  {module.name} \n"
            f"{start:016x}  k  leaf+0x0  {module.name} [FTRACE]\n"
            f"{twice:016x}  r  twice+0x0  {module.name} [FTRACE]\n"
        )


@isolated(shared=True)
def test_kp91_the_newest_probe_of_an_address_is_listed_first():
    address = basic().symbol("leaf").address
    with kprobes.attach("leaf"), kprobes.attach("leaf+5"), kprobes.attach_return("leaf"):
        lines = [line.split()[:2] for line in kprobes.kprobes_list().splitlines()]
        assert lines == [[f"{address:016x}", "r"], [f"{address:016x}", "k"], [f"{address + 5:016x}", "k"]]
