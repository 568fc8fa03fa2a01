"""Scripts: what `exec` opens, and what is said of files that cannot be opened or read (TE-4.1, TE-10.2)."""

from __future__ import annotations

import pytest
from isolation import isolated

from tests.busybox.grammar import IncompleteError, UnsupportedError, parse_script


def ran(script: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a script."""
    from fprobe.tracefs import tracefs
    from tests.busybox.commands import Commands
    from tests.busybox.files import Files
    from tests.busybox.shell import Shell, Sink

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
def test_te10_2_directories_have_the_modes_and_links_of_tracefs_and_eventfs() -> None:
    ran("mkdir instances/a")
    _, listing, _ = ran("ls -ld events events/ftrace instances options trace")
    assert [line[:15] for line in listing.splitlines()] == [
        "drwxr-xr-x    1",
        "drwxr-xr-x    1",
        "drwxr-x---    3",
        "drwxr-x---    2",
        "-rw-r-----    1",
    ]


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


@isolated
def test_te10_2_loops_conditions_and_substitutions() -> None:
    read = "for e in a b 'c d'; do echo $e >> /tmp/x; done; while read -r first rest; do echo [$rest] $first; done < /tmp/x"
    assert ran(read) == (0, "[] a\n[] b\n[d] c\n", "")
    assert ran("i=0; while [ $i -lt 3 ]; do i=$((i * 2 + 1)); done; echo $i ${i}x '$i'") == (0, "3 3x $i\n", "")
    assert ran('echo $(cat current_tracer; false) `cat tracing_on`; echo "$(ls -1 instances)$?" # end') == (
        0,
        "nop 1\n0\n",
        "",
    )
    branches = "if [ -d events ] && test ! -e nosuch; then echo d; elif :; then echo e; else echo n; fi | cat"
    assert ran(branches) == (0, "d\n", "")
    assert ran("until test -f trace; do :; done; { echo a; echo b; } > /tmp/g; cat /tmp/g; exit 4; echo c") == (
        4,
        "a\nb\n",
        "",
    )


@isolated
def test_only_the_name_of_a_fetch_argument_stands_for_itself_when_it_is_not_set() -> None:
    assert ran("""echo r:x f $retval "$comm" +0(${stack0}) $arg1 $stack $""") == (
        0,
        "r:x f $retval $comm +0(${stack0}) $arg1 $stack $\n",
        "",
    )
    assert ran("""comm=x; echo "$comm" "$nosuch" $args""") == (0, "x \n", "")


@isolated
def test_te4_1_a_job_writes_what_a_pipe_waits_for() -> None:
    shown = "sed 's/.*: //'"
    assert ran(f"(sleep 0.05; echo late > trace_marker) & cat trace_pipe | head -1 | {shown}") == (0, "late\n", "")
    copying = "cat trace_pipe > /tmp/out & for i in 1 2; do sleep 0.05; echo $i > trace_marker; done; sleep 0.1"
    assert ran(f"{copying}; kill $!; wait $!; echo $?; {shown} /tmp/out") == (0, "143\n1\n2\n", "")


@isolated
def test_te4_1_a_job_that_is_left_ends_with_its_script() -> None:
    assert ran("cat trace_pipe > /tmp/out & sleep 0.05") == (0, "", "")
    assert ran("echo function > current_tracer; echo nop > current_tracer") == (0, "", "")


@isolated
def test_te11_1_what_copies_data_tells_what_it_could_not_do() -> None:
    assert ran("cp nosuch /tmp/x") == (1, "", "cp: can't stat 'nosuch': No such file or directory\n")
    assert ran("cp current_tracer nosuch") == (1, "", "cp: can't create 'nosuch': Permission denied\n")
    assert ran("cp trace_marker /tmp/x") == (1, "", "cp: read error: Invalid argument\n")
    assert ran("cp current_tracer tracing_on") == (1, "", "cp: write error: Invalid argument\n")
    assert ran("echo 0 | dd of=tracing_on status=none; cat tracing_on") == (0, "0\n", "")
    assert ran("dd if=tracing_on bs=x") == (1, "", "dd: invalid number 'x'\n")
    assert ran("cat tracing_on nosuch trace_clock | wc -l")[1:] == (
        "2\n",
        "cat: can't open 'nosuch': No such file or directory\n",
    )


@isolated
def test_te10_2_programs_show_the_names_that_they_were_given() -> None:
    made = "echo a > /tmp/x; cd /sys/kernel/tracing; "
    assert ran(f"{made}wc -l /tmp/x; grep a /tmp/x tracing_on; head -n 1 /tmp/x tracing_on") == (
        0,
        "1 /tmp/x\n/tmp/x:a\n==> /tmp/x <==\na\n\n==> tracing_on <==\n1\n",
        "",
    )


@pytest.mark.parametrize(
    "script",
    ["for x in a; do echo 1", "if true; then", "while :", "{ echo", "for x in a; do if :; then :; fi", "(echo", "case a in",
     "echo a &&", "echo 'a", 'echo "a', "cat <<E\na", "f() {", "echo $(cat"],
)  # fmt: skip
def test_a_script_without_its_end_is_incomplete(script: str) -> None:
    with pytest.raises(IncompleteError):
        parse_script(script)


@pytest.mark.parametrize(
    "script",
    [
        "| cat",
        "echo a && | b",
        "for 1 in a; do :; done",
        "fi x; }|",
        "a & | b",
        "if :; fi",
        "a )",
        "a | ; b",
        "a && ; b",
        "echo a ;; b",
    ],
)
def test_what_is_no_script_is_refused(script: str) -> None:
    with pytest.raises(UnsupportedError):
        parse_script(script)


@isolated
def test_te10_2_commands_that_a_tree_refuses_and_what_dd_and_tee_say() -> None:
    assert ran("mv trace x") == (1, "", "mv: can't rename 'trace': Operation not permitted\n")
    assert ran("ln -s trace x") == (1, "", "ln: x: Operation not permitted\n")
    assert ran("dd if=nosuch") == (1, "", "dd: can't open 'nosuch': No such file or directory\n")
    assert ran("dd if=events") == (1, "", "dd: events: Is a directory\n")
    assert ran("dd if=tracing_on of=nosuch") == (1, "", "dd: can't open 'nosuch': Permission denied\n")
    assert ran("dd if=current_tracer of=tracing_on") == (1, "", "dd: writing 'tracing_on': Invalid argument\n")
    assert ran("echo 0 | tee tracing_on -a trace_pipe; cat tracing_on") == (
        0,
        "0\n0\n",
        "tee: trace_pipe: Invalid argument\n",
    )


@isolated
def test_te1_1_find_by_name_type_and_depth() -> None:
    assert ran("find events/module -name enable") == (
        0,
        "".join(f"events/module/{path}\n" for path in ("enable", "module_free/enable", "module_load/enable")),
        "",
    )
    assert ran("find events/module -maxdepth 1 -type d -name 'module_*'") == (
        0,
        "events/module/module_free\nevents/module/module_load\n",
        "",
    )
    assert ran("find nosuch events -maxdepth 0") == (1, "events\n", "find: nosuch: No such file or directory\n")


@isolated
def test_pe4_16_lines_with_any_bytes_are_found() -> None:
    made = r"printf 'a=\x00\xe4\nb\xff\nc\n' > /tmp/x; "
    assert ran(made + "grep -c '[ab]' /tmp/x; sed -n 's/^b.$/B/p' /tmp/x") == (0, "2\nB\n", "")


@pytest.mark.parametrize(
    ("script", "output"),
    [
        ("cd /sys/kernel/tracing; pwd; cat tracing_on", "/sys/kernel/tracing\n1\n"),
        ("cd /sys/kernel/debug/tracing/options; cat print-parent; cd ..; cat tracing_on", "1\n1\n"),
        ("cd per_cpu/cpu0; ls | head -n 1; echo 1 > ../../tracing_on; cat .././../tracing_on", "buffer_size_kb\n1\n"),
        ("cd options; cd; pwd", "/sys/kernel/tracing\n"),
        ("exec 3<>/tmp/p; echo 1234567 > /tmp/p; echo ab >&3; echo c >&3; echo d >> /tmp/p; cat /tmp/p", "ab\nc\n67\nd\n"),
        ("cd /tmp; echo a > b; cat /tmp/b; ls /tmp", "a\nb\n"),
        ("cat /sys/kernel/tracing/tracing_[o]?; cd per_cpu; echo [c]pu0; echo ../tracing_o*", "1\ncpu0\n../tracing_on\n"),
        ("ls /sys/kernel/tracing/ | head -n 1; ls /sys/kernel/debug", "README\nkprobes\ntracing\n"),
    ],
)  # fmt: skip
def test_paths_are_those_of_a_mounted_tracefs(script, output):
    """A script that begins with cd, as the kernel's documents do."""
    assert ran(script) == (0, output, "")


def test_a_directory_that_is_none():
    assert ran("cd nosuch") == (2, "", "sh: cd: line 0: can't cd to nosuch: No such file or directory\n")
    assert ran("cd trace") == (2, "", "sh: cd: line 0: can't cd to trace: Not a directory\n")
    assert ran("rmdir /sys/kernel/debug/kprobes; cat /sys/kernel/nosuch")[0] == 1
    assert ran("mkdir /sys/x")[2] == "mkdir: can't create directory '/sys/x': Operation not permitted\n"
