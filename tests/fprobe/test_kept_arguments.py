"""HAZARDS 10: regs, entry_data and ri that outlive their handler are no way into memory that others use by then."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import pytest
from isolation import isolated
from programs import basic

import fprobe
import kprobes


def expired(use, *words):
    with pytest.raises(ValueError) as caught:
        use()
    for word in words:
        assert word in str(caught.value), caught.value


@isolated(shared=True)
def test_regs_kept_after_an_fprobes_handlers():
    module, kept = basic(), []

    def at_entry(fp, ip, ret_ip, regs, data):
        kept.append(regs)

    def at_exit(fp, ip, ret_ip, regs, data):
        kept.append(regs)
        regs.ax = 77

    with fprobe.attach(["leaf"], entry=at_entry, exit=at_exit):
        for _ in range(3):
            assert module["leaf"](1) == 77
    assert len(set(map(id, kept))) == 6
    for regs, name in zip(kept, ["at_entry", "at_exit"] * 3, strict=True):
        expired(lambda regs=regs: regs.ax, "regs of the fprobe at leaf", name, "ax = regs.ax")
        expired(lambda regs=regs: setattr(regs, "ip", 0), "regs", name)
        assert not hasattr(regs, "__array_interface__") and repr(regs)


@isolated(shared=True)
def test_regs_that_are_kept_hold_memory_of_their_own():
    """Views of them, which know nothing of their end, show what was there; writing does nothing to later calls."""
    module, views = basic(), []

    def handler(fp, ip, ret_ip, regs, data):
        views.append((regs.di, memoryview(regs).cast("B").cast("Q")))

    with fprobe.attach(["leaf"], entry=handler):
        for n in range(50):
            module["leaf"](n)
            for _, view in views:
                view[14] = 0xBAD
    assert [di for di, _ in views] == list(range(50))
    assert all(view[14] == 0xBAD for _, view in views)


@isolated(shared=True)
def test_entry_data_kept_after_a_handler():
    module, kept, slices, found = basic(), [], [], []

    def at_entry(fp, ip, ret_ip, regs, data):
        data[:8] = regs.di.to_bytes(8, "little")
        kept.append(data)
        slices.append(data[8:])

    def at_exit(fp, ip, ret_ip, regs, data):
        found.append(bytes(data))

    with fprobe.attach(["leaf"], entry=at_entry, exit=at_exit, entry_data_size=16):
        for n in range(20):
            module["leaf"](n)
            slices[-1][0] = 99  # a copy
    assert found == [n.to_bytes(8, "little") + bytes(8) for n in range(20)]
    for data in kept:
        expired(lambda data=data: data[0])


@isolated(shared=True)
def test_entry_data_that_is_released_or_resized_by_the_handler():
    module, found = basic(), []

    def at_entry(fp, ip, ret_ip, regs, data):
        owner = data.obj
        data[0] = 5
        data.release()
        owner.extend(bytes(4096))

    with fprobe.attach(["leaf"], entry=at_entry, exit=lambda *hit: found.append(bytes(hit[4])), entry_data_size=8):
        module["leaf"](1)
    assert found == [bytes(8)]  # what it has become is not 8 bytes


@isolated(shared=True)
def test_nested_and_interleaved_handlers_have_registers_of_their_own():
    """A handler that calls a probed function, and one that lets another thread in."""
    import threading

    module, seen = basic(), []

    def outer(fp, ip, ret_ip, regs, data):
        before = regs.di
        if before < 4:
            module["leaf"](before + 1)
        seen.append((before, regs.di))

    with fprobe.attach(["leaf"], entry=outer):
        module["leaf"](0)
        threads = [threading.Thread(target=lambda n=n: [module["leaf"](n) for _ in range(500)]) for n in (10, 20, 30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(before == after for before, after in seen) and len(seen) >= 1500


@isolated(shared=True)
def test_an_exception_keeps_regs_and_they_expire():
    module, kept = basic(), []

    def handler(fp, ip, ret_ip, regs, data):
        regs.di = 40
        kept.append(regs)
        raise LookupError

    with fprobe.attach(["leaf"], entry=handler) as probe:
        plain = module["leaf"](40)
        assert module["leaf"](1) == plain  # what it changed before it raised is kept
    assert isinstance(probe.fp.errors.first, LookupError) and probe.fp.errors.count == 2
    expired(lambda: kept[0].di)


@isolated(shared=True)
def test_regs_kept_after_the_handlers_of_kprobes():
    module, kept = basic(flavour="none"), []

    def before(p, regs):
        kept.append(regs)

    with kprobes.attach(module["leaf"].address, pre=before, post=lambda p, regs, flags: kept.append(regs)):
        module["leaf"](1)
    assert len(kept) == 2
    expired(lambda: kept[0].ax, "regs of the kprobe at leaf", "before", "ax = regs.ax")
    expired(lambda: kept[1].ax, "regs of the kprobe at leaf", "lambda")


@isolated(shared=True)
def test_an_instance_kept_after_the_handlers_of_a_kretprobe():
    module, kept, datas, shared = basic(), [], [], []

    def entered(ri, regs):
        ri.data[:8] = regs.di.to_bytes(8, "little")
        kept.append(ri)
        datas.append(ri.data)

    def returned(ri, regs):
        shared.append((bytes(ri.data), ri.ret_addr > 0, ri.task > 0, ri.frame == regs.sp - 8))
        kept.append(ri)

    with kprobes.attach_return(module["leaf"].address, returned, entry=entered, data_size=12):
        for n in range(20):
            module["leaf"](n)
    assert shared == [(n.to_bytes(8, "little") + bytes(4), True, True, True) for n in range(20)]
    for ri in kept:
        for field in ("data", "ret_addr", "task", "frame"):
            expired(lambda ri=ri, field=field: getattr(ri, field), "ri of the kretprobe", f"{field} = ri.{field}")
        assert ri.rp is kept[0].rp
    for data in datas:
        expired(lambda data=data: data[0])


@isolated(shared=True)
def test_dropped_handlers_leave_no_memory():
    import gc
    import tracemalloc

    module = basic()

    kept = []

    def rounds(count):
        for _ in range(count):
            handlers = {"entry": lambda *hit: kept.append(hit[3]), "exit": lambda *hit: None}
            with fprobe.attach(["leaf"], entry_data_size=8, **handlers):
                module["leaf"](1)
                module["leaf"](2)
            kept.clear()
        gc.collect()

    rounds(20)
    tracemalloc.start()
    rounds(5)
    before = tracemalloc.get_traced_memory()[0]
    rounds(100)
    assert tracemalloc.get_traced_memory()[0] - before < 20_000
