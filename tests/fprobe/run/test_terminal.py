"""`fprobe run` on a terminal: Ctrl-C, Ctrl-Z, a launcher that is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from sampled import sampled
from terminal import Terminal

WAITS = """
import sys, time, zlib
zlib.compress(b"x")
print("ready", sys.stdin.isatty(), sys.stdout.isatty(), flush=True)
try:
    line = input()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
print("read", line, flush=True)
"""


NUMBERS = (1, 2, 3, 10, 12, 14, 15, 20, 28, 34)


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def start(*options):
        script = tmp_path / "app.py"
        script.write_text(WAITS)
        ours = ["-m", "fprobe.cli", "run", *options] if options else []
        opened.append(Terminal(sys.executable, *ours, str(script)))
        opened[-1].wait_for("ready True True")
        time.sleep(0.3)  # until it reads
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def options(tmp_path):
    return ("--stat", "libz:deflate", "-o", str(tmp_path / "report"))


def plain(seen):
    """Without spaces, and without the line of progress of a slow start, which was erased."""
    return re.sub(r"\s+", "", seen.rpartition("\r\x1b[K")[2])


def test_ctrl_c_interrupts_the_program_once(terminal, tmp_path):
    seen = []
    for given in ((), options(tmp_path)):
        job = terminal(*given)
        job.press(b"\x03")
        seen.append(job.wait_for("ended -2"))
    assert plain(seen[0]) == plain(seen[1])
    assert seen[1].count("interrupted") == seen[1].count("Traceback") == 1
    assert "deflate [libz]" in (tmp_path / "report").read_text()


@pytest.mark.stress
def test_ctrl_z_stops_launcher_and_program(terminal, tmp_path):
    seen = []
    for given in ((), options(tmp_path)):
        job = terminal(*given)
        job.press(b"\x1a")
        job.wait_for("stopped")
        job.press(b"abc\n")
        seen.append(job.wait_for("ended 0"))
    assert plain(seen[0]) == plain(seen[1])


@pytest.mark.stress
def test_ctrl_z_that_the_program_handles_stops_nothing(tmp_path):
    source = (
        "import signal; signal.signal(20, lambda *a: print('kept', flush=True)); print('ready', flush=True); input()"
    )
    job = Terminal(sys.executable, "-m", "fprobe.cli", "run", *options(tmp_path), "-c", source)
    job.wait_for("ready")
    job.press(b"\x1a")
    job.wait_for("kept")
    job.press(b"\n")
    assert "stopped" not in job.wait_for("ended 0")
    job.close()


@pytest.mark.stress
@pytest.mark.parametrize(("signal_name", "ends"), sampled([("SIGCONT", "goes on\n"), ("SIGKILL", "")], 1))
def test_a_stopped_program_that_another_process_continues_or_kills(tmp_path, signal_name, ends):
    """Hazard: the launcher, which has stopped too, would wait for a SIGCONT of its own."""
    source = (
        "import os, signal, time\npid = os.getpid()\n"
        f"if not os.fork(): time.sleep(0.3); os.kill(pid, signal.{signal_name}); os._exit(0)\n"
        "os.kill(pid, signal.SIGSTOP); print('goes on')"
    )
    ours = [sys.executable, "-m", "fprobe.cli", "run", *options(tmp_path), "-c", source]
    done = subprocess.run(ours, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0 if ends else -signal.SIGKILL, ends)


def test_signals_interrupt_the_report(tmp_path):
    """They must not be forwarded to whoever gets the process id of the program after it."""
    source = f"""
import os, signal
from fprobe.run.launcher.launching import Program
program = Program(["-c", "pass"], dict(os.environ))
assert all(callable(signal.getsignal(number)) for number in {NUMBERS})
assert program.wait() == 0
assert all(signal.getsignal(number) is signal.SIG_DFL for number in {NUMBERS})
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=30)


def test_a_program_that_has_ended_is_not_stopped():
    """Hazard: `fprobe top` is woken by a signal just as the program ends."""
    source = """
import os
from fprobe.run.launcher.launching import Program
program = Program(["-c", "pass"], dict(os.environ))
os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
assert program.stopped_by() == 0
assert program.wait() == 0
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=30)


@pytest.mark.stress
def test_a_program_that_stops_itself_stops_the_launcher(tmp_path):
    source = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print('goes on')"
    ours = [sys.executable, "-m", "fprobe.cli", "run", *options(tmp_path), "-c", source]
    launcher = subprocess.Popen(ours, stdout=subprocess.PIPE, start_new_session=True)
    _, status = os.waitpid(launcher.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.killpg(launcher.pid, signal.SIGCONT)
    assert launcher.communicate(timeout=30)[0] == b"goes on\n"


@pytest.mark.stress
def test_the_program_outlives_a_launcher_that_is_killed(tmp_path):
    source = "import os, sys, time, zlib; print(os.getppid(), flush=True); input(); zlib.compress(b'x'); print('done')"
    ours = [sys.executable, "-m", "fprobe.cli", "run", *options(tmp_path), "-c", source]
    launcher = subprocess.Popen(ours, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert int(launcher.stdout.readline()) == launcher.pid
    launcher.kill()
    launcher.wait()
    assert launcher.communicate(b"\n", timeout=30)[0] == b"done\n"


@pytest.mark.stress
@pytest.mark.parametrize("send", sampled([os.kill, os.killpg], 1))
def test_signals_reach_the_program_once(tmp_path, send):
    """Those that a process sends to the launcher alone, and those to its process group, which the program gets itself."""
    source = f"""
import signal
seen = []
def handler(number, frame):
    seen.append(number); print(number, flush=True)
for number in {NUMBERS}: signal.signal(number, handler)
print("ready", flush=True); input(); print(seen)
"""
    ours = [sys.executable, "-m", "fprobe.cli", "run", *options(tmp_path), "-c", source]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    launcher = subprocess.Popen(ours, text=True, **streams)
    assert launcher.stdout.readline() == "ready\n"
    for number in NUMBERS:
        send(launcher.pid, number)
        assert launcher.stdout.readline() == f"{number}\n"
    assert launcher.communicate("\n", timeout=30)[0] == f"{list(NUMBERS)}\n"
    assert launcher.returncode == 0


@pytest.mark.stress
def test_ctrl_z_stops_top_and_gives_the_terminal_back(tmp_path):
    """The terminal shows the shell's screen meanwhile, and the table again, of another size, when it goes on."""
    source = "import time, zlib\nfor _ in range(60): zlib.compress(b'x'); time.sleep(0.02)\nprint('out')"
    job = Terminal(sys.executable, "-m", "fprobe.cli", "top", "--stat", "libz:*flate", "-d", "0.3", "-c", source)
    job.wait_for("deflate [libz]")
    job.press(b"\x1a")
    job.wait_for("stopped")
    seen = job.wait_for("ended 0")
    job.close()
    before, _, after = seen.partition("stopped")
    assert before.rstrip().endswith("\x1b[?1049l") and after.strip().startswith("\x1b[?1049h")
    assert after.count("\x1b[H") >= 1 and "out" in after.partition("\x1b[?1049l")[2]


def test_top_is_drawn_in_place(tmp_path):
    source = (
        "import os, time, zlib\nfor _ in range(50): zlib.compress(b'x'); time.sleep(0.02)\nprint('out', os.isatty(1))"
    )
    command = ["-m", "fprobe.cli", "top", "--stat", "libz:*flate", "-d", "0.2", "-n", "5", "-c", source]
    job = Terminal(sys.executable, *command)
    seen = job.wait_for("ended 0")
    job.close()
    drawn, _, after = seen.partition("\x1b[?1049l")
    assert drawn.startswith("\x1b[?1049h") and drawn.count("\x1b[H") >= 2
    assert "\x1b" not in after
    output, head, heads, row, *_ = after.splitlines()
    assert output == "out False" and head.startswith("1 functions called") and heads.split()[0] == "CALLS"
    assert row.split()[0] == "50" and row.endswith("deflate [libz]")


@pytest.mark.stress
@pytest.mark.parametrize("term", sampled(["dumb", "", "unknown"], 1))
def test_a_terminal_that_has_no_escapes_gets_none(term):
    source = "import time, zlib\nfor _ in range(30): zlib.compress(b'x'); time.sleep(0.02)"
    words = ["top", "--stat", "libz:*flate", "-d", "0.2", "-c", source]
    job = Terminal(sys.executable, "-m", "fprobe.cli", *words, term=term)
    seen = job.wait_for("ended 0")
    job.close()
    assert "\x1b" not in seen and seen.count("deflate [libz]") >= 2


@pytest.mark.stress
def test_top_follows_the_size_of_the_terminal(tmp_path):
    """Whatever COLUMNS says, and wherever standard output is."""
    ends = tmp_path / "ends"
    source = f"import os, time, zlib\nzlib.compress(b'x')\nwhile not os.path.exists({str(ends)!r}): time.sleep(0.05)"
    words = ["top", "--stat", "libz:*flate", "-d", "0.3", "-c", source]
    fresh = "import os, sys; os.environ['COLUMNS'] = '200'; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    job = Terminal(sys.executable, "-c", fresh, "-m", "fprobe.cli", *words, size=(24, 100))
    job.wait_for("deflate [libz]")
    job.resize(4, 30)
    job.output = ""
    job.wait_for("   TOTAL FUNCTION")
    ends.touch()
    seen = job.wait_for("ended 0")
    job.close()
    last = seen.partition("\x1b[?1049l")[0].split("\x1b[H")[-1]
    assert max(len(re.sub(r"\x1b\[[KJ]|\r", "", line)) for line in last.split("\n")) == 30


@pytest.mark.parametrize(
    "options", [("--stat", "libc:atoi", "--by", "arg(arg1:string)"), ("-e", "f:x libc:atoi s=+0($arg1):string")]
)
def test_csv_does_to_a_terminal_nothing_that_the_program_says(options):
    """In a file it has the program's bytes."""
    code = "import ctypes; ctypes.CDLL(None).atoi(b'\\x1b[31mred\\x07\\xff')"
    opened = Terminal(sys.executable, "-m", "fprobe.cli", "run", *options, "--format", "csv", "-c", code)
    try:
        seen = opened.wait_for(r"\x1b[31mred\x07\xff")
    finally:
        opened.close()
    assert "\x1b[31m" not in seen and "\x07" not in seen
