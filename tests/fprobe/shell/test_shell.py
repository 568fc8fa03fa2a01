"""Scripts: what `exec` opens, and what is said of files that cannot be opened or read (TE-4.1, TE-10.2)."""

from __future__ import annotations

from isolation import isolated


def ran(script: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a script."""
    from fprobe.shell.commands import Commands
    from fprobe.shell.files import Files
    from fprobe.shell.shell import Shell, Sink
    from fprobe.tracefs import tracefs

    out, err = Sink(), Sink()
    status = Shell(Files(tracefs), Commands().run).run(script, out, err)
    return status, out.data.decode(), err.data.decode()


@isolated
def test_te4_1_what_exec_has_opened_is_closed_with_the_script_or_when_it_says_so() -> None:
    busy = "sh: write error: Device or resource busy\n"
    assert ran("exec 3<trace_pipe; echo function > current_tracer") == (1, "", busy)
    assert ran("echo function > current_tracer") == (0, "", "")
    assert ran("exec 3<trace_pipe; exec 3>&-; echo nop > current_tracer") == (0, "", "")
    assert ran("exec 3<trace_pipe 4<&3; exec 3>&-; echo function > current_tracer") == (1, "", busy)


@isolated
def test_te10_2_messages_name_what_was_tried() -> None:
    ran("mkdir instances/a")
    assert ran("exec 3<instances/a/trace; rmdir instances/a") == (
        1,
        "",
        "rmdir: 'instances/a': Device or resource busy\n",
    )
    assert ran("rmdir trace") == (1, "", "rmdir: 'trace': Not a directory\n")
    assert ran("cat events") == (1, "", "cat: read error: Is a directory\n")
    assert ran("cat nosuch") == (1, "", "cat: can't open 'nosuch': No such file or directory\n")
    assert ran("cat <nosuch") == (1, "", "sh: can't open nosuch: no such file\n")
    assert ran("echo 1 >nosuch") == (1, "", "sh: can't create nosuch: Permission denied\n")
    assert ran("echo 1 >events") == (1, "", "sh: can't create events: Is a directory\n")
    assert ran("exec 3<trace_pipe; cat trace_pipe") == (
        1,
        "",
        "cat: can't open 'trace_pipe': Device or resource busy\n",
    )
    assert ran("rmdir instances/a") == (0, "", "")


@isolated
def test_te4_1_what_waits_for_data_is_killed_by_timeout() -> None:
    assert ran("timeout 0.05 dd if=trace_pipe bs=8") == (143, "", "")
    assert ran("echo text > trace_marker; timeout 0.05 cat trace_pipe > /tmp/a; echo $?; wc -l < /tmp/a") == (
        0,
        "143\n1\n",
        "",
    )
    assert ran("timeout 5 dd if=current_tracer bs=2 skip=1") == (0, "p\n", "1+0 records in\n1+0 records out\n")


@isolated
def test_te10_2_programs_of_the_system_work_on_the_files() -> None:
    assert ran("cut -c1-7 trace_clock") == (0, "[local]\n", "")
    assert ran("tr -d '[]' < trace_clock | cut -d ' ' -f 1,2") == (0, "local global\n", "")
    assert ran("cat trace_clock | tr ' ' '\\n' | sort -r | tail -n 1") == (0, "[local]\n", "")
    assert ran("sort -k 2 -t : events/ftrace/print/format | uniq | grep -c field:int") == (0, "1\n", "")
    assert ran("awk -v n=2 '{ print $n }' trace_clock") == (0, "global\n", "")
    assert ran("awk '{ print $2 }' tracing_on trace_clock") == (0, "\nglobal\n", "")
    assert ran("od -A n -t x1 tracing_on") == (0, " 31 0a\n", "")
    assert ran("cut -c1 nosuch")[2] == "cut: nosuch: No such file or directory\n"


@isolated
def test_kp73_a_sysctl_takes_the_first_number_that_ends_at_a_blank() -> None:
    path = "/proc/sys/debug/kprobes-optimization"
    invalid = "sh: write error: Invalid argument\n"
    for text in ("", "x", "1x", "2", "-1", "1_0", "4294967297"):
        assert ran(f"echo '{text}' > {path}; cat {path}") == (0, "1\n", invalid), text
    assert ran(f"echo ' 0x0 9' > {path}; cat {path}") == (0, "0\n", "")
    assert ran(f"echo 01 > {path}; cat {path}") == (0, "1\n", "")
