"""PE-5.1: a probe event on a library that is not loaded waits, and hits once a program has loaded it.

Characters of the file's name that the grammar takes for something else are `_`, as in the names of the kernel's modules.
"""

from __future__ import annotations

from isolation import isolated


@isolated(timeout=60)
def test_pe5_1_an_event_fires_from_the_librarys_first_call_on() -> None:
    import ctypes
    import ctypes.util
    import subprocess
    import sys
    import tempfile

    import kprobes
    from fprobe.tracefs import tracefs

    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/libto-come++.so"
        source = "long tocome(long x) { return x + 1; }\n"
        compile_ = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", path]
        if subprocess.run(compile_, input=source.encode(), check=False).returncode:
            sys.exit(0)
        tracefs.write(
            "kprobe_events",
            "p:asked libto_come__:tocome x=%di\nr:told libto_come__:tocome $retval\np:never libother:x\n",
        )
        assert kprobes.kprobes_list() == "", "the probes on dlopen are nobody's"
        assert tracefs.read("kprobe_events").splitlines()[1].startswith("r:kprobes/told libto_come__:tocome ")
        tracefs.write("events/kprobes/enable", "1")
        library = ctypes.CDLL(path)
        library.tocome.restype = ctypes.c_long
        assert library.tocome(41) == 42
        lines = [line for line in tracefs.read("trace").splitlines() if not line.startswith("#")]
        assert [line.partition(": ")[2].partition(":")[0] for line in lines] == ["asked", "told"], lines
        assert "x=0x29" in lines[0] and "arg1=0x2a" in lines[1]
        assert " libto_come__:tocome " in tracefs.read("kprobe_events")
        tracefs.write("events/kprobes/enable", "0")
        tracefs.write("kprobe_events", "")


@isolated
def test_a_child_can_watch_for_libraries_though_another_thread_was_beginning_to() -> None:
    """Rules of forks (docs/locking.md): in the child no lock stays held by a thread that does not exist there."""
    import threading

    from forked import forked

    from kprobes.library_loads import LibraryWatch

    begun, go_on = threading.Event(), threading.Event()

    def is_needed() -> bool:
        begun.set()
        go_on.wait(20)
        return False

    def in_child() -> None:
        go_on.set()
        another = threading.Thread(target=watch.begin, daemon=True)
        another.start()
        another.join(30)
        assert not another.is_alive()

    watch = LibraryWatch(lambda: None, is_needed)
    thread = threading.Thread(target=watch.begin)
    thread.start()
    begun.wait(20)
    forked("a child that watches", in_child)
    go_on.set()
    thread.join()


@isolated
def test_a_probe_is_registered_once_though_linking_its_handler_loads_code_while_another_event_waits() -> None:
    """LLVM calls dlopen for each object that it links, and an event that is being registered looks like one that waits."""
    import kprobes
    import sandbox
    from fprobe.tracefs import tracefs

    sandbox.load("define i64 @one(i64 %x) { ret i64 %x }", name="there")
    tracefs.write("kprobe_events", "p:waits libnever:x\n")
    tracefs.write("kprobe_events", "p:once there:one a=%di:u16\nr:back there:one $retval:u16\n", append=True)
    assert kprobes.kprobes_list().count("one+0x0") == 2, kprobes.kprobes_list()
    tracefs.write("kprobe_events", "")
    assert kprobes.kprobes_list() == ""


@isolated
def test_watching_for_libraries_does_not_read_all_of_the_c_library():
    """That took a third of the time that `fprobe run --by caller` needs for it."""
    from kprobes.library_loads import Watch
    from sandbox.images.process_text import library_called

    watch = Watch(lambda: None)
    library = library_called("libc")
    assert library.called
    assert "_shown" not in vars(library)
    watch.end()
