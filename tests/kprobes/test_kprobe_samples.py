"""US-2, US-3: the kernel's samples/kprobes as programs, and the function that is mended while it runs."""

import re

import pytest
from isolation import EXAMPLES, run_example
from sampled import in_stress


def run(name, *words, code=0):
    done = run_example(name, *map(str, words), timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.splitlines(), done.stderr


def test_us2_kprobe_example_prints_the_kernels_messages():
    lines, _ = run("kprobe_example", "--symbol", "vfs_fsync", "--call", "demo_main", "1")
    address = re.fullmatch(r"kprobe_init: Planted kprobe at 0x([0-9a-f]+)", lines[0])[1]
    after = f"{int(address, 16) + 1:x}"
    assert lines[-1] == f"kprobe_exit: kprobe at 0x{address} unregistered"
    assert len(lines) > 2
    for pre, post in zip(lines[1:-1:2], lines[2:-1:2], strict=True):
        assert re.fullmatch(rf"handler_pre: <vfs_fsync> p->addr = 0x{address}, ip = {after}, flags = 0x[0-9a-f]+", pre)
        assert re.fullmatch(rf"handler_post: <vfs_fsync> p->addr = 0x{address}, flags = 0x[0-9a-f]+", post)


def test_us3_kretprobe_example_prints_the_kernels_messages():
    lines, _ = run("kretprobe_example", "--func", "vfs_fsync", "--call", "demo_main", "1")
    address = re.fullmatch(r"kretprobe_init: Planted return probe at vfs_fsync: (0x[0-9a-f]+)", lines[0])[1]
    assert lines[-2:] == [
        f"kretprobe_exit: kretprobe at {address} unregistered",
        "kretprobe_exit: Missed probing 0 instances of vfs_fsync",
    ]
    assert len(lines) > 3
    for line in lines[1:-2]:
        assert re.fullmatch(r"ret_handler: vfs_fsync returned 0 and took \d+ ns to execute", line)


def test_us3_calls_of_threads_to_skip_are_passed_over(monkeypatch):
    """The entry handler's 1 leaves the call alone, and counts nothing (KP-78)."""
    import threading

    monkeypatch.syspath_prepend(EXAMPLES)
    from kretprobe_example import Sample

    import sandbox

    module = sandbox.load("define i64 @skipped(i64 %x) noinline { ret i64 %x }", name="skipping")
    lines = []
    sample = Sample("skipped", [threading.get_native_id()], lines.append)
    assert sample.kretprobe_init()
    module["skipped"](3)
    other = threading.Thread(target=module["skipped"], args=(4,))
    other.start()
    other.join()
    sample.kretprobe_exit()
    module.unload()
    assert [line.split(" and ")[0] for line in lines[1:-2]] == ["ret_handler: skipped returned 4"]
    assert lines[-1].endswith("Missed probing 0 instances of skipped")


@pytest.mark.parametrize(
    ("sample", "option"), [("kprobe_example", "--symbol"), in_stress(("kretprobe_example", "--func"))]
)
def test_a_symbol_that_is_not_there_is_the_kernels_errno(sample, option):
    lines, _ = run(sample, option, "no_such_function", code=1)
    assert len(lines) == 1 and lines[0].endswith("failed, returned -2")


def test_live_fix_mends_a_running_function():
    """KP-36: ip changed and non-zero returned: the instruction is not executed."""
    lines, _ = run("live_fix")
    assert lines[0] == "average(12, 4) = 3"
    assert re.fullmatch(r"average\(12, 0\) faulted: SIGFPE in average\+0x[0-9a-f]+/0x[0-9a-f]+ \[averages\]", lines[1])
    assert lines[2:] == ["mended:", "average(12, 4) = 3", "average(12, 0) = 0"]
