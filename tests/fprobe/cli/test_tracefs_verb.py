"""fprobe tracefs: the tree from the command line, in one shot and through /bin/sh."""

import os
import subprocess
from pathlib import Path

import pytest
from command import COMMAND
from namespaces import UNSHARE, needs_fuse

SCRIPT = (
    "echo 'p:reads vfs_read count=%dx:u64' > kprobe_events; echo 1 > events/kprobes/reads/enable; call demo_main 1\n"
    "cat trace | grep -c reads: ; ls events/kprobes/reads | head -n 2; cd /sys/kernel/tracing 2>&- && cat tracing_on; exit 3"
)


@needs_fuse
def test_a_script_defines_calls_and_reads(run):
    done = run("tracefs", "sh", "-c", SCRIPT, code=3)
    assert done.out.startswith("1\nenable\nfilter\n")
    assert done.err.startswith("demo_main(1) = ")


@needs_fuse
def test_scripts_in_files_with_arguments(run, tmp_path):
    (tmp_path / "script").write_text("cat $1; call nothing || echo refused\n")
    done = run("tracefs", "sh", str(tmp_path / "script"), "tracing_on")
    assert done.out == "1\nrefused\n" and "no function 'nothing'" in done.err


@needs_fuse
def test_nothing_of_the_shell_is_left(run):
    before = Path("/proc/self/mountinfo").read_text()
    place, room = run("tracefs", "sh", "-c", "pwd; command -v call").out.split()
    assert Path("/proc/self/mountinfo").read_text() == before
    assert not Path(room).exists() and not os.path.ismount(place)


def test_without_fuse_it_says_what_is_missing():
    hidden = 'mount -t tmpfs none /dev 2>/dev/null || exit 77; exec "$@"'
    command = [*UNSHARE, "sh", "-c", hidden, "sh", *COMMAND, "tracefs", "sh"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 77:
        pytest.skip("needs a mount namespace")
    assert done.returncode == 2
    assert "/dev/fuse cannot be opened (No such file or directory)" in done.stderr
    assert "`fprobe tracefs cat`, ls, grep and write need nothing" in done.stderr


def test_one_shot_forms(run, programs):
    assert run("tracefs", "cat", "tracing_on").out == "1\n"
    assert run("tracefs", "cat", "tracing_on", "current_tracer", "trace_pipe").out == "1\nnop\n"
    assert "header_page" in run("tracefs", "ls", "events").out.splitlines()
    assert run("tracefs", "ls", "trace", "events/ftrace").out.startswith("trace\nevents/ftrace:\n")
    assert run("tracefs", "grep", "-ic", "^VFS_R", "available_filter_functions").out == "1\n"
    assert run("tracefs", "grep", "-n", "1", "tracing_on", "tracing_on").out == "tracing_on:1:1\n" * 2
    assert run("tracefs", "grep", "2", "tracing_on", code=1).out == ""
    assert run("tracefs", "--program", str(programs / "prog.ll"), "write", "kprobe_events", "p:x fact n=%di").out == ""


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["frob"], 127, "fprobe: no command 'frob'; there are: cat, ls, grep, write, sh"),
        (["cat", "nothing"], 1, "fprobe: nothing: No such file or directory\n"),
        (["cat"], 2, "cat takes files"),
        (["grep", "(", "trace"], 2, "the pattern is '('"),
        (["grep", "x"], 2, "grep takes"),
        (["sh", "-c"], 2, "fprobe: sh -c takes one text, not 0; put the commands into quotes\n"),
        (["sh", "/nowhere"], 2, "fprobe: /nowhere: No such file or directory\n"),
        (
            ["write", "tracing_on"],
            2,
            "fprobe: write takes 2 words, a file and a text, not 1; put the text into quotes\n",
        ),
        (
            ["write", "kprobe_events", "p:x vfs_read a=%zz"],
            1,
            "Invalid register name\n  p:x vfs_read a=%zz\n                 ^\n",
        ),
    ],
)
def test_what_goes_wrong_is_said(run, words, code, message):
    assert message in run("tracefs", *words, code=code).err
