"""A name that matches nothing: what comes near it is suggested."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

import ctypes
import re

import pytest
from programs import basic
from sampled import in_stress

import fprobe
import kprobes
import sandbox
from sandbox.images.near_misses import near_misses


@pytest.fixture(scope="module")
def program():
    module = basic()
    yield module
    module.unload()


@pytest.mark.parametrize("target", ["factoral", "*factoral", ["factoral"]])
def test_a_near_miss_of_an_fprobe(program, target):
    with pytest.raises(OSError, match=r"did you mean factorial\b"):
        fprobe.attach(target, entry=lambda *hit: 0).attach()


def test_a_near_miss_of_a_kprobe(program):
    for target in ("factoral", f"{program.name}:factoral"):
        with pytest.raises(OSError, match=r"did you mean factorial\b"):
            kprobes.attach(target, pre=lambda p, regs: 0).attach()
    with pytest.raises(OSError, match=r"did you mean .*deflate\b"):
        kprobes.attach("libz:deflat", pre=lambda p, regs: 0).attach()


@pytest.mark.parametrize("target", ["lizb:deflate", "lizb:deflate+4"])
def test_a_near_miss_of_a_library(target):
    with pytest.raises(OSError, match="'lizb' is loaded; did you mean libz:deflate"):
        kprobes.attach(target, pre=lambda p, regs: 0).attach()


@pytest.mark.parametrize(
    ("target", "near"),
    [
        ("libz:nosuch", ""),
        in_stress(("libc:fopen@GLIBC_2.2.5", "; did you mean libc:fopen?")),
        ("libz:cosh", "; did you mean libm:cosh?"),
        in_stress(("libm:deflate", "; did you mean libz:deflate?")),
        in_stress(("nosuch", "")),
        ("inflat", "; did you mean libz:inflate"),
    ],
)
def test_another_library_is_only_suggested_for_its_own_names(target, near):
    """`cosh` is not near `nosuch` for anybody who has named libz."""
    ctypes.CDLL("libz.so.1")
    with pytest.raises(
        OSError, match=f"matches '{re.escape(target.rpartition(':')[2])}'{re.escape(near)}" + "$" * (not near)
    ):
        fprobe.attach(target, entry=lambda *hit: 0).attach()


def test_a_near_miss_of_a_module(program):
    with pytest.raises(LookupError, match=rf"did you mean .*{program.name}\b"):
        sandbox.find_module(f"x{program.name}")


def test_a_near_miss_of_a_symbol(program):
    with pytest.raises(LookupError, match=r"no symbol 'factoral'; did you mean factorial\b"):
        sandbox.symbol_table.lookup("factoral")


def test_nothing_is_suggested_for_what_is_like_nothing(program):
    with pytest.raises(OSError, match=r"no function matches 'qqqqqqqqqq'$"):
        fprobe.attach("qqqqqqqqqq", entry=lambda *hit: 0).attach()


def test_a_function_without_a_stub_is_not_suggested_in_its_own_place():
    module = sandbox.load("define void @bare() { ret void }", name="bared", notrace=["bare"])
    with pytest.raises(OSError, match=r"no function matches 'bare'; bare was compiled without a stub"):
        fprobe.attach("bare", entry=lambda *hit: 0).attach()
    module.unload()


def test_a_near_miss_of_a_compiled_function_and_of_a_scope():
    """Numba's functions are called as in Python, which is no reason to send anyone to a library; scopes may be left out."""

    class Compiled:
        name, names, module, no_names, is_own = "numba", ("numba",), None, "", False

        def like(self, _bare, _most):
            return iter(["__main__.sumsq", "app::(anonymous namespace)::hidden", "hidde"])

    assert near_misses("hidden", [Compiled()]) == "; did you mean numba:app::(anonymous?namespace)::hidden?"
    assert near_misses("__main__.sumsqq", [Compiled()]) == "; did you mean numba:__main__.sumsq?"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("ksys_write", "functions of the kernel cannot be probed here; libc:write makes that system call"),
        ("__x64_sys_openat", "functions of the kernel cannot be probed here; libc:openat makes that system call"),
        ("sys_nothing", "functions of the kernel cannot be probed here"),
        ("libc.so.6/read", "did you mean libc:read?"),
        ("libc::read", "did you mean libc:read?"),
        ("libc:read,write", "a pattern is a name, or a glob with *, ? and [a-z]: give one for each function"),
        ("libc:{read,write}", "a pattern is a name, or a glob with *, ? and [a-z]: give one for each function"),
        ("libc:0x9d1f0", "a place is a function, or FUNCTION+OFFSET"),
        ("libc:READV", "did you mean libc:readv?"),
        ("uprobe:libc:read", "the kind of a probe is not part of a pattern: give libc:read"),
        ("kprobe:vfs_read", "functions and events of the kernel cannot be probed here"),
        ("syscalls:sys_enter_open", "functions and events of the kernel cannot be probed here"),
        ("libc:prea.*", "a pattern is no regular expression, but a name or a glob with *, ? and [a-z]: give prea*"),
        ("libc:^readv$", "a pattern is no regular expression, but a name or a glob with *, ? and [a-z]: give readv"),
    ],
)
def test_names_as_other_tools_write_them(written, said):
    with pytest.raises(OSError, match=re.escape(f"; {said}") + "$"):
        fprobe.attach(written, entry=lambda *hit: 0).attach()
