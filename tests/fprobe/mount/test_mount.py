"""The mounted tree, used by other programs. Everything is mounted in a mount namespace of its own."""

from __future__ import annotations

import os
import shutil
import textwrap

import pytest
from isolation import run_forked
from namespaces import needs_fuse

_PROGRAM = "define i32 @twice(i32 %x) { %y = mul i32 %x, 2  ret i32 %y }"
_HEAD = f"""
import namespaces
namespaces.enter()
import errno, os, select, signal, subprocess, sys, tempfile, threading, time
from pathlib import Path
import sandbox
from fprobe.tracefs import mount, tracefs

SOURCE = {_PROGRAM!r}
program = sandbox.load(SOURCE, name="prog")
top = Path(tempfile.mkdtemp())

def sh(command, code=0, **options):
    # not cwd=top: the child would enter it while Python 3.10 keeps the interpreter, which the files need
    words = ["sh", "-c", 'cd "$0" && eval "$1"', top, command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, **options)
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
    done = run_forked(_HEAD + textwrap.dedent(body) + "\nos.rmdir(top)\nprint('ended')", 60, cold=False)
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
def test_requests_that_take_long_do_not_keep_others_waiting():
    run("""
    goes_on = threading.Event()

    def hold(path, pid):
        if path.endswith("README"):
            goes_on.wait(20)

    with mount(top, before_request=hold):
        sh("ls instances")
        readers = [subprocess.Popen(["cat", top / "README"], stdout=-1) for _ in range(3)]
        for _ in range(20):
            assert sh("cat tracing_on") == "1\\n"
            time.sleep(0.01)
        assert [reader.poll() for reader in readers] == [None] * 3
        goes_on.set()
        assert len({reader.communicate(timeout=10)[0] for reader in readers}) == 1
        time.sleep(0.3)  # until nobody looks any more
        assert sh("cat tracing_on; cat tracing_on") == "1\\n1\\n"
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


@pytest.mark.stress
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
@pytest.mark.parametrize("how", ["INT", *(pytest.param(how, marks=pytest.mark.stress) for how in ("TERM", "HUP"))])
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
def test_before_request_is_told_of_each_file_and_who_asks():
    run("""
    seen = []
    with mount(top, before_request=lambda path, pid: seen.append((path, pid))):
        pid = int(sh("echo $$; cat current_tracer >/dev/null; :").strip())
        assert "current_tracer" in {path for path, _ in seen}
        os.stat(top / "events")
        assert ("events", os.getpid()) in seen
    """)


@needs_fuse
def test_the_tracefs_of_a_program_that_is_run():
    run("""
    (top / "t").mkdir()
    (top / "prog.py").write_text('''
    import subprocess, sys, zlib
    def sh(command):
        return subprocess.run(["sh", "-c", "cd t && " + command], capture_output=True, text=True).stdout
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
def serve():
    ready, write = os.pipe()
    server = os.fork()
    if server == 0:
        mount(top)
        os.write(write, b"x")
        time.sleep(60)
    assert os.read(ready, 1) == b"x"
    return server
def unmounted():
    for _ in range(200):
        if str(top) not in Path("/proc/mounts").read_text():  # stat() of a dead mount fails
            return True
        time.sleep(0.05)
    return False
"""


@needs_fuse
@pytest.mark.parametrize("how", ["KILL", pytest.param("TERM", marks=pytest.mark.stress)])
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
os.kill(server, signal.SIG{how})
os.waitpid(server, 0)
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
        script = f"cd '{top}' && while :; do echo long long text > trace_marker; done"
        writers = [subprocess.Popen(["sh", "-c", script]) for _ in range(2)]
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
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_without_privileges_and_without_fusermount3_is_told_what_to_install():
    run("""
    os.rmdir(top); top = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(top, 65534, 65534)
    child = os.fork()
    if child == 0:
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        os.environ["PATH"] = str(top)
        try:
            mount(top)
        except OSError as wrong:
            said = "there is no fusermount3, which mounts for users other than root: install fuse3"
            os._exit(0 if (wrong.errno, wrong.strerror) == (errno.ENOENT, said) and not os.path.ismount(top) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    """)


@needs_fuse
def test_each_cpu_has_a_raw_file_with_the_records_of_its_slots():
    run("""
    with mount(top):
        threads = [threading.Thread(target=tracefs.write, args=("trace_marker", f"text{n}")) for n in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
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


@pytest.mark.stress
@needs_fuse
@pytest.mark.parametrize(
    ("markers", "definitions"), [(50, 10), pytest.param(2500, 250, marks=pytest.mark.stress)], ids=["few", "many"]
)
def test_no_write_is_lost_and_memory_stays_flat_while_threads_record(markers, definitions):
    run(f"""
    MARKERS, DEFINITIONS = {markers}, {definitions}
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4
    with mount(top):
        sh("echo 'p:twice twice' > kprobe_events; echo 1 > events/kprobes/twice/enable; echo 100 > buffer_size_kb")
        os.mkdir(top / "instances/said")
        ending = threading.Event()
        def record():
            while not ending.is_set():
                program["twice"](1)
                time.sleep(0.001)
        threads = [threading.Thread(target=record) for _ in range(4)]
        for each in threads:
            each.start()
        count = "i=0; while [ $i -lt {{}} ]; do {{}} || exit 1; i=$((i+1)); done"
        say = count.format(MARKERS, "echo said-{{n}}-$i. > instances/said/trace_marker && cat tracing_on > /dev/null")
        both = count.format(DEFINITIONS, r"printf 'p:a{{n}}_%s twice\\np:b{{n}}_%s twice\\n' $i $i >> kprobe_events"
                            " && if echo p:same_$i twice 2>&- >> kprobe_events; then echo $i; fi")
        sizes = []
        for part in range(2):
            words = [f"cd '{{top}}' && " + each.replace("{{n}}", f"{{part}}{{n}}") for each in (say, both) for n in range(4)]
            if part:
                words = words[:4]
            writers = [subprocess.Popen(["dash", "-c", each], stdout=-1, stderr=-1, text=True) for each in words]
            done = [each.communicate(timeout=500) for each in writers]
            assert [each.returncode for each in writers] == [0] * len(words), done
            sizes.append(resident())
            if not part:
                first = sorted(int(number) for out, _ in done[4:] for number in out.split())
                assert first == list(range(DEFINITIONS))  # each was defined by one, and refused to three
        assert sizes[1] - sizes[0] < 4096, sizes
        ending.set()
        for each in threads:
            each.join()
        names = [line.split()[0] for line in sh("cat kprobe_events").splitlines()]
        assert len(names) == len(set(names)) == 9 * DEFINITIONS + 1
        said = {{line.rpartition(" ")[2] for line in sh("cat instances/said/trace").splitlines() if "said-" in line}}
        assert said == {{f"said-{{part}}{{n}}-{{i}}." for part in range(2) for n in range(4) for i in range(MARKERS)}}
        sh("echo 0 > events/enable; echo > kprobe_events")
        os.rmdir(top / "instances/said")
    """)


@pytest.mark.stress
@needs_fuse
def test_a_directory_that_cannot_be_mounted_on_is_refused_with_a_reason():
    run("""
    import errno
    def refusal(directory):
        try:
            mount(directory)
        except OSError as wrong:
            return errno.errorcode[wrong.errno], wrong.strerror
    (top / "file").touch()
    assert refusal(top / "none") == ("ENOENT", f"there is no directory {top / 'none'}; make it, or give another")
    assert refusal(top / "file") == ("ENOTDIR", f"{top / 'file'} is not a directory; give an empty one")
    assert refusal(top) == ("ENOTEMPTY", f"{top} is not empty; give an empty directory")
    os.remove(top / "file")
    os.chown(top, 1, -1)
    assert refusal(top) == ("EACCES", f"{top} belongs to another user; give a directory of your own")
    os.chown(top, os.geteuid(), -1)
    subprocess.run(["mount", "--bind", "/dev/null", "/dev/fuse"], check=True)
    assert refusal(top) == ("EINVAL", f"{top} cannot be mounted on: Invalid argument; /dev/fuse is not the device of FUSE")
    subprocess.run(["umount", "/dev/fuse"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/dev"], check=True)
    assert refusal(top) == ("ENODEV", "there is no /dev/fuse: the kernel module fuse is not loaded, or a container hides it")
    subprocess.run(["umount", "/dev"], check=True)
    with mount(top):
        assert refusal(top)[0] == "EBUSY" and "is mounted on" in refusal(top)[1]
        assert refusal(top / "events")[0] == "ENOTEMPTY"
        done = subprocess.run([sys.executable, "-m", "fprobe", "mount", top], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "") and "is mounted on" in done.stderr
    """)


@needs_fuse
def test_the_cpumask_is_of_the_machines_cpus():
    run("""
    os.cpu_count = lambda: 2
    with mount(top):
        os.mkdir(top / "instances/one")
        os.chdir(top / "instances/one")
        sh("echo 'p:twice twice' > kprobe_events; echo 1 > instances/one/events/kprobes/twice/enable")
        def counts():
            together = threading.Barrier(6)
            threads = [threading.Thread(target=lambda: (program["twice"](1), together.wait())) for _ in range(6)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            lines = [Path(f"per_cpu/cpu{cpu}/stats").read_text().splitlines()[0] for cpu in range(2)]
            sh("echo > instances/one/trace")
            return [int(line.split()[1]) for line in lines]
        assert sh("cat instances/one/tracing_cpumask") == "3\\n" and counts() == [3, 3]
        assert error(Path("tracing_cpumask").write_text, "4\\n") == errno.EOVERFLOW
        sh("echo 2 > instances/one/tracing_cpumask")
        assert sh("cat instances/one/tracing_cpumask") == "2\\n" and counts() == [0, 3]
        os.chdir("/")
        sh("echo 0 > instances/one/events/kprobes/enable; echo > kprobe_events; rmdir instances/one")
    """)


@needs_fuse
def test_splice_moves_whole_sub_buffers_until_there_are_none():
    run("""
    with mount(top):
        for number in range(300):
            tracefs.write("trace_marker", f"said{number}.")
        incoming, outgoing = os.pipe()
        for cpu in range(os.cpu_count()):
            source = os.open(top / f"per_cpu/cpu{cpu}/trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK)
            pages = []
            try:
                while size := os.splice(source, outgoing, 1 << 14):
                    pages.append(os.read(incoming, size))
            except BlockingIOError:
                pass
            os.close(source)
            if pages:
                break
        assert all(len(page) % 4096 == 0 for page in pages)
        assert all(b"said%d." % number in b"".join(pages) for number in range(300))
    """)


@needs_fuse
def test_a_process_that_waits_for_its_own_mount_can_be_killed():
    run(
        _SERVER
        + """
server = os.fork()
if server == 0:
    mount(top)
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGKILL]).start()
    os.read(os.open(top / "trace_pipe", os.O_RDONLY), 10)
for _ in range(200):
    if os.waitpid(server, os.WNOHANG)[0]:
        break
    time.sleep(0.05)
else:
    raise AssertionError("it hangs")
assert unmounted()
"""
    )
