"""fprobe tracefs: the tree from the command line, in one shot and through its shell."""

import pytest

SCRIPT = (
    "echo 'p:reads vfs_read count=%dx:u64' > kprobe_events; echo 1 > events/kprobes/reads/enable; call demo_main 1\n"
    "cat trace | grep -c reads: ; ls events/kprobes/reads | head -n 2; find events/kprobes | tail -1"
)


def test_a_script_defines_calls_and_reads(run):
    done = run("tracefs", "sh", "-c", SCRIPT)
    assert done.out == "1\nenable\nfilter\nevents/kprobes/reads/trigger\n"
    assert done.err.startswith("demo_main(1) = ")


def test_scripts_in_files_and_from_standard_input(run, tmp_path):
    (tmp_path / "script").write_text("cat tracing_on\n")
    assert run("tracefs", "sh", str(tmp_path / "script")).out == "1\n"


def test_one_shot_forms(run, programs):
    assert run("tracefs", "cat", "tracing_on").out == "1\n"
    assert "header_page" in run("tracefs", "ls", "events").out.splitlines()
    assert run("tracefs", "find", "events/ftrace/print").out.splitlines()[0] == "events/ftrace/print"
    assert run("tracefs", "--program", str(programs / "prog.ll"), "write", "kprobe_events", "p:x fact n=%di").out == ""


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["frob"], 127, "fprobe: no command 'frob'; there are: "),
        (["cat", "nothing"], 1, "cat: can't open 'nothing': No such file or directory\n"),
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
        (["sh", "-c", "echo 2 > nothing"], 1, "sh: can't create nothing: Permission denied\n"),
        (["sh", "-c", "call nothing"], 2, "nothing"),
    ],
)
def test_what_goes_wrong_is_said(run, words, code, message):
    assert message in run("tracefs", *words, code=code).err
