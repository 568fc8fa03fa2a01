"""The mounted tree, used by other programs. Everything is mounted in a mount namespace of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap

import pytest
from namespaces import UNSHARE, needs_fuse

_PROGRAM = "define i32 @twice(i32 %x) { %y = mul i32 %x, 2  ret i32 %y }"
_HEAD = f"""
import errno, os, select, signal, subprocess, sys, tempfile, threading, time
from pathlib import Path
import sandbox
from fprobe.tracefs import mount, tracefs

SOURCE = {_PROGRAM!r}
program = sandbox.load(SOURCE, name="prog")
top = Path(tempfile.mkdtemp())

def sh(command, code=0, **options):
    done = subprocess.run(["sh", "-c", command], cwd=top, capture_output=True, text=True, timeout=30, **options)
    assert done.returncode == code, (command, done)
    return done.stdout

def error(action, *arguments):
    try:
        action(*arguments)
    except OSError as wrong:
        return wrong.errno
    raise AssertionError("no error")
"""


def run(body: str) -> str:
    """Run a script after `_HEAD`, in a mount namespace of its own."""
    command = [*UNSHARE, sys.executable, "-c", _HEAD + textwrap.dedent(body) + "\nos.rmdir(top)\nprint('ended')"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stdout.endswith("ended\n"), f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@needs_fuse
def test_shell_commands_read_and_write_the_tree():
    run("""
    with mount(top):
        assert sh("cat current_tracer") == "nop\\n"
        assert set(sh("ls").split()) == set(tracefs.listdir(""))
        sh("echo 'p:twice twice' > kprobe_events; echo 'p:again twice' >> kprobe_events")
        assert sh("cat kprobe_events") == "p:kprobes/twice twice\\np:kprobes/again twice\\n"
        sh("echo 1 > events/kprobes/twice/enable")
        program["twice"](3)
        assert "twice: (twice" in sh("cat trace")
        sh(": > trace")
        assert "twice: (twice" not in sh("cat trace")
        sh("echo 0 > events/enable; echo > kprobe_events")
        assert tracefs.read("kprobe_events") == ""
        sh("mkdir instances/one; test -d instances/one/events; rmdir instances/one; test ! -e instances/one")
    assert not os.path.ismount(top) and os.listdir(top) == []
    """)


@needs_fuse
def test_errors_are_those_of_the_files():
    run("""
    with mount(top):
        assert error(Path(top, "kprobe_events").write_text, "nonsense\\n") == errno.EINVAL
        assert error(Path(top, "nothing").read_text) == errno.ENOENT
        assert error(Path(top, "new").write_text, "x") == errno.EACCES
        assert error(os.mkdir, top / "new") == errno.EPERM
        assert error(os.rename, top / "trace", top / "new") == errno.EPERM
        assert error(os.unlink, top / "trace") == errno.EPERM
        assert error(os.rmdir, top / "events") == errno.EPERM
        with open(top / "trace_pipe") as pipe:
            assert error(open, top / "trace_pipe") == errno.EBUSY
        assert Path(top, "current_tracer").open().read(2) == "no"
    """)


@needs_fuse
def test_a_blocked_read_occupies_nobody_and_ends_with_a_record_or_a_signal():
    run("""
    with mount(top):
        for number in range(12):
            os.mkdir(top / f"instances/i{number}")
        readers = [subprocess.Popen(["cat", top / f"instances/i{n}/trace_pipe"], stdout=-1) for n in range(12)]
        time.sleep(0.2)
        assert sh("cat tracing_on") == "1\\n"  # with all of them blocked
        sh("echo said > instances/i3/trace_marker")
        assert b"tracing_mark_write: said" in readers[3].stdout.readline()
        for reader in readers:
            reader.terminate()
            assert reader.wait(5) == -signal.SIGTERM
        for number in range(12):
            os.rmdir(top / f"instances/i{number}")
        pipe = os.open(top / "trace_pipe", os.O_RDONLY)
        os.set_blocking(pipe, False)  # after open(), as trace-cmd does
        assert error(os.read, pipe, 100) == errno.EAGAIN
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        assert poll.poll(0) == []
        threading.Timer(0.1, sh, ["echo awake > trace_marker"]).start()
        assert poll.poll(10_000) and b"awake" in os.read(pipe, 1000)
        os.close(pipe)
    """)


@needs_fuse
def test_a_marker_carries_the_writers_thread_and_name():
    run("""
    with mount(top):
        pid = sh("echo $$; echo hello > trace_marker").strip()
        line = next(line for line in sh("cat trace").splitlines() if "hello" in line)
        assert line.split()[0] == f"sh-{pid}", line
        tracefs.write("trace_marker", "own")
        assert f"-{threading.get_native_id()} " in next(line for line in tracefs.read("trace").splitlines() if "own" in line)
    """)


@needs_fuse
def test_inode_numbers_modes_and_owners():
    run("""
    with mount(top):
        inode = os.stat(top / "trace").st_ino
        assert os.stat(top).st_mode & 0o777 == 0o700
        os.mkdir(top / "instances/one")
        first = os.stat(top / "instances/one/trace").st_ino
        os.rmdir(top / "instances/one"); os.mkdir(top / "instances/one")
        assert os.stat(top / "instances/one/trace").st_ino == first != inode == os.stat(top / "trace").st_ino
        os.rmdir(top / "instances/one")
        os.chmod(top / "trace", 0o600)
        assert os.stat(top / "trace").st_mode & 0o777 == 0o600
        assert {entry.inode() for entry in os.scandir(top)} >= {inode}
    """)


@needs_fuse
def test_a_killed_server_leaves_no_mount_even_with_a_child_that_has_the_device():
    run("""
    source = '''
    import os, sys, time
    import sandbox
    from fprobe.tracefs import mount
    sandbox.load(PROGRAM, name="prog")
    mount(sys.argv[1])
    child = os.fork()
    if child == 0:
        time.sleep(60)
    print(child, flush=True)
    time.sleep(60)
    '''
    import textwrap
    text = textwrap.dedent(source).replace("PROGRAM", repr(SOURCE))
    server = subprocess.Popen([sys.executable, "-c", text, top], stdout=-1, text=True)
    child = int(server.stdout.readline())
    reader = subprocess.Popen(["cat", top / "trace_pipe"], stderr=-1)
    time.sleep(0.2)
    server.kill()
    assert reader.wait(10) == 1
    for _ in range(200):
        if str(top) not in Path("/proc/mounts").read_text():  # stat() of a dead mount fails
            break
        time.sleep(0.05)
    assert str(top) not in Path("/proc/mounts").read_text()
    os.kill(child, signal.SIGKILL)
    """)


@needs_fuse
@pytest.mark.parametrize("how", ["INT", "TERM", "HUP"])
def test_the_verb_serves_until_a_signal_and_calls_what_is_written(how):
    run(f"""
    server = subprocess.Popen([sys.executable, "-m", "fprobe", "mount", top], stdout=-1, text=True)
    try:
        assert "mounted on" in server.stdout.readline()
        assert sh("echo vfs_read >> set_ftrace_filter; cat set_ftrace_filter") == "vfs_read [demo]\\n"
        sh("echo function > current_tracer; echo demo_main 1 > fprobe/call")
        assert sh("cat fprobe/call").startswith("demo_main(1) = ") and "vfs_read" in sh("cat trace")
        sh("echo no_such 1 > fprobe/call", 1)
        assert "no_such" in sh("cat fprobe/call")
        server.send_signal(signal.SIG{how})
        assert server.wait(10) == 0 and not os.path.ismount(top)
    finally:
        server.kill()
    """)


@needs_fuse
def test_a_directory_that_cannot_be_mounted_on_is_refused_with_a_reason():
    run("""
    import re
    def refusal(directory):
        done = subprocess.run([sys.executable, "-m", "fprobe", "mount", directory], capture_output=True, text=True)
        assert done.returncode == 2 and done.stdout == "", done
        return done.stderr
    assert "there is no directory" in refusal(top / "none")
    (top / "file").touch()
    assert "is not a directory" in refusal(top / "file")
    assert "is not empty" in refusal(top)
    os.remove(top / "file")
    with mount(top):
        assert "is mounted on" in refusal(top)
        assert "is not empty" in refusal(top / "events")
    """)


@needs_fuse
def test_before_request_is_told_of_each_file_and_who_asks():
    run("""
    seen = []
    with mount(top, before_request=lambda path, pid: seen.append((path, pid))):
        pid = int(sh("echo $$; cat current_tracer >/dev/null; :").strip())
        assert "current_tracer" in {path for path, _ in seen}
        os.stat(top)
        assert ("", os.getpid()) in seen
    """)


@needs_fuse
def test_writers_and_readers_while_threads_record():
    run("""
    with mount(top):
        sh("echo 'p:twice twice' > kprobe_events; echo 1 > events/kprobes/twice/enable")
        ending = threading.Event()
        def record():
            while not ending.is_set():
                program["twice"](1)
        threads = [threading.Thread(target=record) for _ in range(4)]
        for each in threads:
            each.start()
        script = "for i in $(seq 200); do echo $i > trace_marker && cat tracing_on > /dev/null || exit 1; done"
        writers = [subprocess.Popen(["sh", "-c", script], cwd=top) for _ in range(3)]
        line = "for i in $(seq 50); do echo p:w{n}_$i twice >> kprobe_events || exit 1; done"
        lines = [subprocess.Popen(["sh", "-c", line.replace("{n}", str(n))], cwd=top)
                 for n in range(4)]
        assert [each.wait(60) for each in (*writers, *lines)] == [0] * 7
        ending.set()
        for each in threads:
            each.join()
        assert len(sh("cat kprobe_events").splitlines()) == 201
        sh("echo 0 > events/enable; echo > kprobe_events")
    """)


@needs_fuse
def test_the_tracefs_of_a_program_that_is_run():
    run("""
    (top / "t").mkdir()
    (top / "prog.py").write_text('''
    import subprocess, sys, zlib
    def sh(command):
        return subprocess.run(["sh", "-c", command], cwd=sys.argv[1], capture_output=True, text=True).stdout
    sh("echo 'p:packs libz:deflate' > kprobe_events; echo 1 > events/kprobes/enable")
    zlib.compress(b"x")
    print(sh("grep -c packs: trace; ls -d events/kprobes/packs"))
    sys.exit(7)
    ''')
    command = [sys.executable, "-m", "fprobe", "run", "--mount", "t", "prog.py", "t"]
    done = subprocess.run(command, cwd=top, capture_output=True, text=True, timeout=50)
    assert done.stdout.split() == ["1", "events/kprobes/packs"] and (done.returncode, done.stderr) == (7, ""), done
    for _ in range(200):
        if not os.path.ismount(top / "t"):
            break
        time.sleep(0.05)
    assert not os.path.ismount(top / "t")
    (top / "prog.py").unlink(); (top / "t").rmdir()
    """)


_SERVER = """
SERVER = '''
import os, sys, threading, time
import sandbox
from fprobe.tracefs import mount, tracefs
program = sandbox.load({program!r}, name="prog")
mount(sys.argv[1])
print("ready", flush=True)
time.sleep(60)
'''
def serve():
    server = subprocess.Popen([sys.executable, "-c", SERVER.format(program=SOURCE), top], stdout=-1, text=True)
    assert server.stdout.readline() == "ready\\n"
    return server
def unmounted():
    for _ in range(200):
        if str(top) not in Path("/proc/mounts").read_text():  # stat() of a dead mount fails
            return True
        time.sleep(0.05)
    return False
"""


@needs_fuse
@pytest.mark.parametrize("how", ["KILL", "TERM"])
def test_whoever_uses_the_files_gets_an_error_when_the_server_dies(how):
    run(
        _SERVER
        + f"""
server = serve()
readers = [subprocess.Popen(["cat", top / "trace_pipe"], stderr=-1)]
for n in range(15):
    os.mkdir(top / f"instances/i{{n}}")
    readers.append(subprocess.Popen(["cat", top / f"instances/i{{n}}/trace_pipe"], stderr=-1))
script = "exec 3> trace_marker; echo held; read x; echo more >&3"
inside = subprocess.Popen(["sh", "-c", script], cwd=top, stdin=-1, stdout=-1, stderr=-1)
inside.stdout.readline()
time.sleep(0.3)
assert Path(top, "tracing_on").read_text() == "1\\n"  # with 16 readers that wait
server.send_signal(signal.SIG{how})
assert [each.wait(10) for each in readers] == [1] * 16
assert unmounted()
inside.communicate(b"\\n", timeout=10)
assert inside.returncode != 0
"""
    )


@needs_fuse
def test_killed_readers_and_writers_leave_nothing_behind():
    run("""
    with mount(top):
        for _ in range(5):
            reader = subprocess.Popen(["cat", top / "trace_pipe"])
            time.sleep(0.1)
            reader.kill()
            reader.wait()
        script = "while :; do echo long long text > trace_marker; done"
        writers = [subprocess.Popen(["sh", "-c", script], cwd=top) for _ in range(2)]
        time.sleep(0.3)
        for each in writers:
            each.kill()
            each.wait()
        lines = [line for line in sh("cat trace").splitlines() if "tracing_mark_write" in line]
        assert lines and all(line.endswith("long long text") for line in lines)
        with open(top / "trace_pipe") as pipe:  # nobody has it open any more
            assert "long" in pipe.readline()
    """)


@needs_fuse
def test_four_writers_of_definitions_and_echo_and_cat_while_threads_record():
    run("""
    import resource
    with mount(top):
        sh("echo 'p:twice twice' > kprobe_events; echo 1 > events/kprobes/twice/enable; echo 100 > buffer_size_kb")
        ending = threading.Event()
        def record():
            while not ending.is_set():
                program["twice"](1)
                time.sleep(0.0001)
        threads = [threading.Thread(target=record) for _ in range(4)]
        for each in threads:
            each.start()
        script = "i=0; while [ $i -lt 250 ]; do echo $i > trace_marker && read x < tracing_on || exit 1; i=$((i+1)); done"
        both = "printf 'p:a{n}_%s twice\\\\np:b{n}_%s twice\\\\n' $i $i >> kprobe_events"
        define = "i=0; while [ $i -lt 25 ]; do " + both + " || exit 1; i=$((i+1)); done"
        commands = [script] * 4 + [define.replace("{n}", str(n)) for n in range(4)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        writers = [subprocess.Popen(["dash", "-c", each], cwd=top) for each in commands]
        assert [each.wait(50) for each in writers] == [0] * 8
        ending.set()
        for each in threads:
            each.join()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
        names = [line.split()[0] for line in sh("cat kprobe_events").splitlines()]
        assert len(names) == len(set(names)) == 201
        sh("echo 0 > events/enable; echo > kprobe_events")
    """)


@needs_fuse
def test_a_mount_inside_the_mount_a_second_one_and_forks_after_the_end():
    run("""
    from sandbox.process import fork
    (top / "a").mkdir(); (top / "b").mkdir()
    with mount(top / "a"):
        assert error(mount, top / "a" / "events") == errno.ENOTEMPTY
        assert error(mount, top / "a") == errno.EBUSY
        with mount(top / "b"):  # the same tree, twice
            sh("echo nop > a/current_tracer; cat b/current_tracer")
            pipe = os.open(top / "a/trace_pipe", os.O_RDONLY)
            assert error(os.open, top / "b/trace_pipe", os.O_RDONLY) == errno.EBUSY
            os.close(pipe)
        assert sh("cat a/tracing_on") == "1\\n"
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert sh("cat a/tracing_on") == "1\\n"
        assert sum("Mount" in repr(call) for _, call in fork._in_child) == 1
    assert not any("Mount" in repr(call) for _, call in fork._in_child)
    (top / "a").rmdir(); (top / "b").rmdir()
    """)


@needs_fuse
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_sees_nothing():
    run("""
    os.rmdir(top); top = Path(tempfile.mkdtemp(dir="/tmp"))  # which others can reach
    os.chmod(top, 0o755)
    (top / "t").mkdir()
    with mount(top / "t"):
        for command in (["ls", top / "t"], ["cat", top / "t/trace"]):
            other = ["setpriv", "--reuid=65534", "--clear-groups", *command]
            done = subprocess.run(other, capture_output=True, text=True)
            assert subprocess.run([*other[:3], "ls", top], capture_output=True).returncode == 0
            assert done.returncode and done.stdout == "" and "ermission denied" in done.stderr, done
    (top / "t").rmdir()
    """)


@needs_fuse
@pytest.mark.skipif(shutil.which("fusermount3") is None, reason="fusermount3 is not installed: apt-get install fuse3")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_without_privileges_mounts_by_fusermount3():
    run("""
    import fprobe.mount.mounting
    os.rmdir(top); top = Path(tempfile.mkdtemp(dir="/tmp"))  # which others can reach
    os.chmod(top, 0o755)
    (top / "t").mkdir(mode=0o700)
    os.chown(top / "t", 65534, 65534)
    node = top / "fuse"
    os.mknod(node, 0o666 | 0o020000, os.stat("/dev/fuse").st_rdev)
    os.chmod(node, 0o666)
    subprocess.run(["mount", "--bind", node, "/dev/fuse"], check=True)
    child = os.fork()
    if child == 0:
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        if not os.access(sys.executable, os.X_OK):
            sys.executable = "/usr/bin/python3"  # for the watcher
        code = 1
        try:
            with mount(top / "t"):
                assert sh(f"cd {top}; cat t/tracing_on; echo said > t/trace_marker; grep -c said t/trace") == "1\\n1\\n"
            assert not os.path.ismount(top / "t")
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    subprocess.run(["umount", "/dev/fuse"], check=True)
    node.unlink(); (top / "t").rmdir()
    """)


@needs_fuse
def test_each_cpu_has_a_raw_file_with_the_records_of_its_slots():
    run("""
    with mount(top):
        for number in range(40):
            threading.Thread(target=tracefs.write, args=("trace_marker", f"text{number}")).start()
        time.sleep(0.5)
        pages = []
        for cpu in range(os.cpu_count()):
            source = os.open(top / f"per_cpu/cpu{cpu}/trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK)
            try:
                while page := os.read(source, 4096):
                    assert len(page) == 4096
                    pages.append(page)
            except BlockingIOError:
                pass
            os.close(source)
        assert all(any(b"text%d\\n" % number in page for page in pages) for number in range(40))
        assert not os.path.exists(top / f"per_cpu/cpu{os.cpu_count()}")
    """)
