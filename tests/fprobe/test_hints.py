"""What many try first and cannot work: each is refused with one sentence that says what to write instead."""

from __future__ import annotations

import pytest

import fprobe
import kprobes
import sandbox
import sandbox.demo
from ftrace.core.handlers.resolve import no_register, register_meant
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import u64
from sandbox.symbols.names import name_of_python


@pytest.fixture(scope="module")
def demo():
    module = sandbox.load(sandbox.demo.source(), name="hinted")
    yield module
    module.unload()


sizes = fprobe.Histogram()
counts = fprobe.Hash(u64, u64, size=16)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("rdi", "di"),
        ("eax", "ax"),
        ("r8d", "r8"),
        ("rip", "ip"),
        ("pc", "ip"),
        ("rflags", "flags"),
        ("xmm0", ""),
        ("", ""),
    ],
)
def test_the_kernels_names_of_registers(name, meant):
    assert register_meant(name) == meant
    assert f"pt_regs has no field {name!r}" in no_register(name)


def reads(fp, ip, ret_ip, regs, data):
    return regs.rdi


def writes(fp, ip, ret_ip, registers, data):
    registers.rax = 3


class Handlers:
    def method(self, fp, ip, ret_ip, regs, data):
        return regs.edx


@pytest.mark.parametrize(
    ("handler", "given", "meant"), [(reads, "rdi", "di"), (writes, "rax", "ax"), (Handlers().method, "edx", "dx")]
)
def test_other_names_of_registers_in_a_python_handler(demo, handler, given, meant):
    with pytest.raises(
        TypeError, match=rf"line \d+: pt_regs has no field '{given}'; give {meant}: fields have the kernel's"
    ):
        fprobe.attach("vfs_read", entry=handler).attach()


def test_other_names_of_registers_in_a_kprobes_handler(demo):
    with pytest.raises(TypeError, match="pt_regs has no field 'rsi'; give si"):
        kprobes.attach("vfs_read", pre=lambda _, regs: print(regs.rsi)).attach()


def test_registers_of_others_are_not_looked_at(demo):
    class Mine:
        rdi = 1

    mine, found = Mine(), []

    def handler(fp, ip, ret_ip, regs, data):
        found.append((mine.rdi, regs.di))
        regs = mine
        found.append(regs.rdi)

    with fprobe.attach("vfs_read", entry=handler) as probe:
        demo["demo_main"](1)
    assert not probe.fp.errors.count and found[1] == 1


def test_names_that_are_only_seen_while_the_handler_runs():
    regs = pt_regs.ctypes()
    with pytest.raises(AttributeError, match="pt_regs has no field 'rcx'; give cx"):
        print(regs.rcx)
    with pytest.raises(AttributeError, match="pt_regs has no field 'rcx'; give cx"):
        regs.rcx = 5
    regs.cx = 5
    assert regs.cx == 5 and not hasattr(regs, "nothing")


def test_operations_of_maps_in_a_python_handler(demo):
    def adds(fp, ip, ret_ip, regs, data):
        sizes.add(regs.dx)

    sentence = (
        r"Histogram\.add\(\) is only for native handlers, and Python reads: make the handler native by @fprobe\.native"
    )
    with pytest.raises(TypeError, match=sentence):
        fprobe.attach("vfs_read", entry=adds).attach()
    with pytest.raises(AttributeError, match=sentence):
        sizes.add(3)
    with pytest.raises(TypeError, match=r"storing in Hash\[\.\.\.\] is only for native handlers"):
        counts[3] = 5
    with pytest.raises(TypeError, match="does not support item assignment"):
        sizes[3] = 5
    with pytest.raises(AttributeError, match="'Histogram' object has no attribute 'put'"):
        sizes.put(3)


def test_names_of_python():
    sentence = "zlib.compress is a name of Python, and probes are on native functions: give LIBRARY:FUNCTION, such as "
    assert name_of_python("zlib.compress").startswith(f"{sentence}zlib:*compress* for the extension module zlib")
    assert "such as libc:*dumps*" in name_of_python("json.dumps")
    assert not any(
        map(name_of_python, ("zlib", "foo.isra.0", "rec.localalias", "zlib:compress", "vfs_*", "os.*", ".f", ""))
    )
    for attach in (fprobe.attach, kprobes.attach):
        with pytest.raises((OSError, LookupError), match=r"zlib\.compress is a name of Python"):
            attach(
                "zlib.compress", action={fprobe.attach: fprobe.Count, kprobes.attach: kprobes.Count}[attach]()
            ).attach()


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("n=%rdi", "give %di"),
        ("n=rdi", "give %di"),
        ("n=%zz", "registers are %ax, %bp, "),
        ("n=cout", "the parameters are file, buf, count, pos"),
    ],
)
def test_arguments_of_events(demo, argument, hint):
    with pytest.raises(OSError, match=rf"\^\n  {hint}"):
        fprobe.event(f"p:reads vfs_read {argument}").attach()


FIELDS = "the fields are count, common_type, common_flags, common_preempt_count, common_pid"


@pytest.mark.parametrize(
    ("line", "options", "said"),
    [
        ("p:asked vfs_read count=%dx", {"filter": "cuont > 1"}, FIELDS),
        ("p:asked vfs_read count=%dx", {"trigger": "hist:keys=cuont"}, FIELDS),
        ("p:asked vfs_read count=%dx", {"trigger": "hist:keys=count if cuont > 1"}, FIELDS),
        ("p:asked vfs_read count=%dx", {"trigger": "hist:keys=count.log"}, ".log2, .buckets=N, "),
        ("p:asked vfs_read count=%dx", {"trigger": "hist:keys=count:sort=cuont"}, "sort by hitcount, or by a key"),
        ("p:asked vfs_read count=%dx", {"trigger": "hist:keys=count:sort=count.up"}, ".ascending and .descending"),
        ("p:asked vfs_read count=%dx:u63", {}, "types are u8 to u64, s8 to s64, "),
        ("f:asked vfs_read%retrun", {}, "the only suffix is %return"),
        ("p:asked vfs_read%retrun", {}, "the only suffix is %return"),
        ("f:asked hinted:vsf_*", {}, "no function of [hinted] matches 'vsf_*'"),
    ],
)
def test_a_word_of_an_event_that_is_not_there_is_told_what_there_is(demo, line, options, said):
    """The kernel's messages say only that it is wrong."""
    with pytest.raises(OSError) as refused, fprobe.event(line, **options):
        pass
    assert said in refused.value.strerror.splitlines()[-1]
