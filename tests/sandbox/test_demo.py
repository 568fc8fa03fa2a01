"""The demo program against an independent model of it, alone, in threads, and interrupted."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import demo_model
import pytest
from sampled import in_stress

from sandbox import demo, load
from sandbox.demo import structures, syscall
from sandbox.native.front import lint

MASK = (1 << 64) - 1
ROUNDS = (0, 1, 2, 7, 8, 64, 500)
O_RDONLY, O_RDWR, O_CREAT = 0, 2, 64
READ, WRITE, OPEN, CLOSE, LSEEK = 0, 1, 2, 3, 5


@pytest.fixture(scope="module")
def loaded():
    program = load(demo.source(), name="demo.tested")
    yield program
    program.unload()


def peek(program, name, kind=ctypes.c_uint64):
    (symbol,) = (symbol for symbol in program.data if symbol.name == name)
    return kind.from_address(symbol.address)


def checksum(program, rounds):
    return program["demo_main"](rounds) & MASK


@pytest.mark.parametrize("rounds", ROUNDS)
def test_checksum_is_the_models(loaded, rounds):
    assert checksum(loaded, rounds) == demo_model.demo_main(rounds)


def test_model_sees_every_outcome_of_a_write():
    model, outcomes = demo_model.Model(), set()
    write = model.write

    def noted(file, start, data):
        result = write(file, start, data)
        outcomes.add(result if result < 0 else result == len(data))
        return result

    model.write = noted
    for index in range(500):
        model.round(index)
    assert outcomes == {True, False, demo_model.ENOSPC, demo_model.EFBIG}


@pytest.mark.parametrize(
    ("flavour", "opt"),
    [
        pytest.param(flavour, opt, marks=[] if (flavour, opt) in (("none", 0), ("mcount", 2)) else pytest.mark.stress)
        for flavour in ("none", "mcount")
        for opt in range(4)
    ],
)
def test_optimization_and_stubs_do_not_change_the_checksum(flavour, opt):
    program = load(demo.source(), name="demo.built", flavour=flavour, opt=opt)
    try:
        assert checksum(program, 100) == demo_model.demo_main(100)
    finally:
        program.unload()


@pytest.mark.parametrize("threads", [4, in_stress(24)])
def test_threads_at_once_do_not_disturb_each_other(loaded, threads):
    files, ticks = peek(loaded, "nr_files").value, peek(loaded, "jiffies").value
    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(lambda rounds: checksum(loaded, rounds), [400 + i % 3 for i in range(threads)]))
    alone = [demo_model.demo_main(400 + i) for i in range(3)]
    assert results == [alone[i % 3] for i in range(threads)]
    assert peek(loaded, "nr_files").value == files
    assert peek(loaded, "jiffies").value == ticks + sum((403 + i % 3) // 4 for i in range(threads))
    assert not any(peek(loaded, "task_owner", ctypes.c_uint64 * 16))


INTERRUPTED = """
import ctypes, signal, sys
from sandbox import demo, load

HANDLER = '''
@interrupted = global i64 0
@wrong = global i64 0
define void @on_alarm(i32 %signal) {
  %expected = call i64 @demo_main(i64 3)
  %again = call i64 @demo_main(i64 3)
  %before = atomicrmw add ptr @interrupted, i64 1 monotonic
  %differ = icmp ne i64 %expected, %again
  %one = zext i1 %differ to i64
  %wrongs = atomicrmw add ptr @wrong, i64 %one monotonic
  ret void
}
'''
program = load(demo.source() + HANDLER, name="demo")
data = {symbol.name: ctypes.c_int64.from_address(symbol.address) for symbol in program.data if symbol.size == 8}
ctypes.CDLL(None).signal(signal.SIGALRM, ctypes.c_void_p(program["on_alarm"].address))
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
results = {program["demo_main"](1000) for _ in range(30)}
signal.setitimer(signal.ITIMER_REAL, 0)
print(*(result & (1 << 64) - 1 for result in results), data["interrupted"].value > 10, data["wrong"].value)
"""


@pytest.mark.stress
def test_a_signal_handler_may_call_demo_main_inside_demo_main():
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    expected = demo_model.demo_main(1000)
    assert run.stdout.split() == [str(expected), "True", "0"]


def test_files_can_be_used_directly(loaded):
    call = loaded["do_syscall"]
    name, text = ctypes.create_string_buffer(b"/home/bob/notes"), ctypes.create_string_buffer(b"written directly")
    room = ctypes.create_string_buffer(32)
    fd = loaded["do_sys_open"](-100, b"/home/bob/notes", O_CREAT | O_RDWR, 0o600)
    assert fd >= 0
    assert call(WRITE, fd, ctypes.addressof(text), 16, 0, 0, 0) == 16
    assert call(LSEEK, fd, 8, 0, 0, 0, 0) == 8
    assert call(READ, fd, ctypes.addressof(room), 32, 0, 0, 0) == 8
    assert room.value == b"directly"
    assert call(CLOSE, fd, 0, 0, 0, 0, 0) == 0
    assert call(CLOSE, fd, 0, 0, 0, 0, 0) == demo_model.EBADF
    again = call(OPEN, ctypes.addressof(name), O_RDONLY, 0, 0, 0, 0)
    assert again == fd
    assert call(WRITE, again, ctypes.addressof(text), 16, 0, 0, 0) == demo_model.EBADF
    assert call(CLOSE, again, 0, 0, 0, 0, 0) == 0


@pytest.mark.parametrize(
    ("path", "flags", "error"),
    [
        (b"", O_RDONLY, demo_model.ENOENT),
        (b"/no/such", O_RDONLY, demo_model.ENOENT),
        (b"/home/new", O_RDONLY, demo_model.ENOENT),
        (b"/dev/zero/x", O_CREAT, demo_model.ENOTDIR),
        (b"/home", O_RDWR, demo_model.EISDIR),
        (b"/home/" + b"n" * 32, O_CREAT, demo_model.ENAMETOOLONG),
        (b"/" * 64, O_RDONLY, demo_model.ENAMETOOLONG),
    ],
)
def test_open_says_what_is_wrong(loaded, path, flags, error):
    assert loaded["do_sys_open"](-100, path, flags, 0o644) == error


def test_slashes_do_not_matter(loaded):
    fd = loaded["do_sys_open"](-100, b"//home///bob/", O_RDONLY, 0)
    assert fd >= 0
    assert loaded["close_fd"](fd) == 0


def test_open_files_run_out(loaded):
    opened = [loaded["do_sys_open"](-100, b"/dev/zero", O_RDONLY, 0) for _ in range(17)]
    assert sorted(opened) == [-24, *range(16)]
    assert [loaded["close_fd"](fd) for fd in range(16)] == [0] * 16


def test_text_is_formatted_from_variable_arguments(loaded):
    room = ctypes.create_string_buffer(64)
    scnprintf = ctypes.CDLL(None).printf.__class__(loaded["scnprintf"].address)
    arguments = ctypes.c_char_p(b"s"), ctypes.c_int(-40), ctypes.c_double(2.05), ctypes.c_int(ord("!"))
    assert scnprintf(room, ctypes.c_long(64), b"%s %d %f%c %%", *arguments) == 13
    assert room.value == b"s -40 2.04! %"
    assert scnprintf(room, ctypes.c_long(4), b"longer") == 3
    assert room.value == b"lon"


def test_who_is_current_is_notrace(loaded):
    untraced = {symbol.name for symbol in loaded.functions} - {symbol.name for symbol in loaded.site_functions}
    assert untraced == {"get_current", "current_nr"}


def test_most_of_it_is_written_in_the_native_language(loaded):
    native = {function.name for function in demo.native_functions()}
    assert set(demo.names()) == {symbol.name for symbol in loaded.functions}
    assert len(native) > 100 and len(native) > 0.7 * len(demo.names())
    assert native < set(demo.names())


def test_what_both_languages_say_of_the_data_agrees(loaded):
    size = {symbol.name: symbol.size for symbol in loaded.data}
    assert size["tasks"] == structures.TASKS * structures.Task.size
    assert size["task_owner"] == structures.TASKS * 8
    assert size["sys_call_table"] == syscall.NR_SYSCALLS * 8
    assert size["ramfs_file_operations"] == structures.FileOperations.size
    assert size["ramfs_dir_inode_operations"] == structures.InodeOperations.size


def test_from_the_cache_neither_the_front_end_nor_llvm_is_needed(tmp_path):
    cached = {**os.environ, "FPROBE_CACHE_DIR": str(tmp_path / "cache")}
    code = "import sys; from sandbox import demo; text = demo.source(); print(len(text), *sys.modules)"
    runs = [
        subprocess.run([sys.executable, "-c", code], env=cached, capture_output=True, text=True, check=True, timeout=60)
        for _ in range(2)
    ]
    (first, *_), (second, *modules) = (run.stdout.split() for run in runs)
    assert first == second == str(len(demo.source()))
    assert not {"llvmlite", "sandbox.native.front.frontend", "sandbox.native.tree"} & set(modules)


def test_its_native_functions_give_no_warnings():
    assert [
        lint.findings(function.typed) for function in demo.native_functions() if lint.findings(function.typed)
    ] == []


def test_strings_can_be_found(loaded):
    command_line = peek(loaded, "saved_command_line", ctypes.c_char_p).value
    assert command_line == b"BOOT_IMAGE=/boot/vfs root=/dev/ram0 ro demo"
    names = {symbol.name for symbol in loaded.data}
    assert {"jiffies", "nr_files", "linux_banner", "sys_call_table", "ramfs_file_operations"} <= names


def test_what_the_table_names_is_there(loaded):
    table = "".join(demo.__doc__.partition("file system  ")[1:]).rpartition("=====  ")[0]
    words = {word.strip(".,;()") for word in table.split() if "_" in word and "*" not in word and "-" not in word}
    known = {symbol.name for symbol in (*loaded.functions, *loaded.data)}
    types = {"file_operations", "inode_operations", "va_list"}
    assert len(words) > 40
    assert words - types <= known
