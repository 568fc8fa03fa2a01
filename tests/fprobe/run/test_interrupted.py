"""Ctrl-C before the program begins: `fprobe run` ends as python does, by the signal and without a traceback of ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from sampled import in_stress, sampled

from fprobe.run.launcher.launching import START

INTERRUPTED = "fprobe: interrupted\n"
NOT_BEGUN = "fprobe: nothing was counted: the program was interrupted before it began\n"
WAITS = "import time, zlib; print('began', flush=True); time.sleep(20)"

AT_IMPORT = """
import os, signal, sys
pid = os.getpid()
def interrupt(event, arguments):
    if event == "import" and arguments[0] == {module!r} and os.getpid() == pid:
        os.kill(pid, signal.SIGINT)
sys.addaudithook(interrupt)
"""
COMMAND_LINE = AT_IMPORT + "sys.argv = ['fprobe', *sys.argv[1:]]\nfrom fprobe.cli import main\nmain()"
AT_EXEC = """
import os, signal, sys
pid = os.getpid()
def interrupt(event, arguments):
    if event == "exec" and getattr(arguments[0], "co_filename", "").endswith({file!r}) and os.getpid() == pid:
        os.kill(pid, signal.SIGINT)
sys.addaudithook(interrupt)
"""
START_FILE = AT_EXEC + f"import runpy\nrunpy.run_path({str(START / 'sitecustomize.py')!r}, run_name='sitecustomize')"

WHILE_ARMED = """
import os, signal, sys
import fprobe
if "fprobe.run.tracee.arming" in sys.modules:
    os.{send}({whom}, signal.SIGINT)
    signal.pause()
@fprobe.native
def entry(fp, ip, ret_ip, regs, data):
    pass
"""

BEFORE_THE_FORK = """
import os, signal
from fprobe.run.launcher.launching import Program
fork, forks = os.fork, []
def interrupted():
    forks.append(os.getpid())
    if len(forks) == 2:  # the first one reports the signals that are delivered
        os.{send}(0 if {send!r} == "killpg" else os.getpid(), signal.{name})
    return fork()
os.fork = interrupted
status = Program(["-c", {waits!r}], dict(os.environ)).wait()
print(os.waitstatus_to_exitcode(status) == -signal.{name})
"""


def run(*words, **options):
    given = {"capture_output": True, "text": True, "timeout": 60, "start_new_session": True}
    return subprocess.run([sys.executable, *words], **given, **options)


@pytest.mark.parametrize("verb", sampled(["run", "top"], 1))
@pytest.mark.parametrize(
    ("module", "says"), [("fprobe.cli.interrupting", ""), ("click.core", INTERRUPTED), ("fprobe.run.session", INTERRUPTED)]
)  # fmt: skip
def test_while_the_command_line_is_imported(verb, module, says):
    done = run("-c", COMMAND_LINE.format(module=module), verb, "--stat", "libz:*", "-c", WAITS)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", says)


def test_other_verbs_exit_with_130():
    done = run("-c", COMMAND_LINE.format(module="click.core"), "list")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", INTERRUPTED)


@pytest.mark.parametrize("file", ["/fprobe/run/tracee/private_packages.py", "/fprobe/run/session.py"])
def test_while_the_start_file_is_imported(file):
    """An exception would be a fatal error of `site`."""
    done = run("-c", START_FILE.format(file=file))
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(("send", "whom"), [("kill", "os.getppid()"), in_stress(("killpg", "0"))])
def test_while_probes_are_attached(tmp_path, send, whom):
    (tmp_path / "handlers.py").write_text(WHILE_ARMED.format(send=send, whom=whom))
    options = ("--trace", "libz:deflate", "--native", f"{tmp_path}/handlers.py:entry")
    done = run("-m", "fprobe", "run", *options, "-c", WAITS)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", NOT_BEGUN)


@pytest.mark.parametrize("name", sampled(["SIGINT", "SIGTERM", "SIGRTMIN"], 1))
@pytest.mark.parametrize("send", ["kill", "killpg"])
def test_before_the_program_is_forked(send, name):
    """The program is not in the process group yet."""
    done = run("-c", BEFORE_THE_FORK.format(send=send, name=name, waits=WAITS))
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.stress
@pytest.mark.parametrize("send", [in_stress(os.kill), os.killpg])
@pytest.mark.parametrize(
    "milliseconds",
    [pytest.param(range(60, 660, 200)), pytest.param(range(0, 800, 20), marks=pytest.mark.stress)],
    ids=["few", "every 20 ms"],
)
def test_at_any_moment(milliseconds, send):
    """Python's own start ends with 1 and `Fatal Python error`, or with a traceback of an import, if it is interrupted."""
    for each in milliseconds:
        command = [sys.executable, "-m", "fprobe", "run", "--stat", "libz:*", "-c", WAITS]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        launcher = subprocess.Popen(command, **streams, start_new_session=True)
        time.sleep(each / 1000)
        send(launcher.pid, signal.SIGINT)
        out, err = launcher.communicate(timeout=15)
        is_pythons = "Fatal Python error: init" in err or err.startswith("Could not import runpy module")
        assert launcher.returncode == (1 if is_pythons else -signal.SIGINT), (each, out, err)
        if "Traceback" in err:
            # Python's own search for modules may be interrupted while it handles a KeyError.
            _, _, last = err.rpartition("During handling of the above exception")
            assert "\nKeyboardInterrupt" in last and "Error:" not in last, (each, err)
            assert out == "began\n" or "fprobe:" not in err or is_pythons, (each, out, err)
        elif out:
            assert "KeyboardInterrupt" in err, (each, err)
