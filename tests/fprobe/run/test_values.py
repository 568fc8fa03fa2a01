"""Arguments and results of `--trace`: as strace shows the same calls, where it is there; else by values known here."""

import os
import re
import shutil
import subprocess
import sys

import pytest

SCRIPT = r"""
import ctypes, os, socket

def tried(call, *arguments):
    try:
        call(*arguments)
    except OSError:
        pass

os.chdir({directory!r})
tried(os.open, "missing\n\"x", os.O_WRONLY | os.O_CREAT | os.O_DIRECTORY, 0o600)
tried(os.open, "absent/x", os.O_RDWR | os.O_APPEND)
written = os.open("made", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
os.write(written, b"hello\n\0\1" + b"x" * 100)
read = os.open("made", os.O_RDONLY)
os.read(read, 4)
os.stat("made")
tried(os.stat, "made/below")
directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
os.open("made", os.O_RDONLY, dir_fd=directory)
tried(os.read, 999, 1)
tried(socket.socket().connect, ("127.0.0.1", 1))
tried(socket.socket(socket.AF_UNIX).connect, "nobody")
os.unlink("made")
tried(os.unlink, "made")
ctypes.CDLL(None).open(ctypes.c_void_p(8), 0)
"""
FUNCTIONS = ("open64", "openat64", "read", "write", "stat", "connect", "unlink")
_CALL = re.compile(r"\| *(\w+) \[libc\]\((.*)\) = (-?\w+(?: E\w+ \([\w ]+\))?)(?: /\* (.*) \*/)?;$")


def trace(launch, tmp_path, *options):
    """The calls of the script: name, arguments, result, and what was stored."""
    (tmp_path / "place").mkdir()
    patterns = [word for name in FUNCTIONS for word in ("--trace", f"libc:{name}")]
    source = SCRIPT.format(directory=str(tmp_path / "place"))
    done = launch(*patterns, *options, source=source, as_json=False)
    assert done.returncode == 0, done.err
    calls = [found.groups() for line in done.err.splitlines() if (found := _CALL.search(line))]
    names = [f"{name}({arguments})" for name, arguments, *_ in calls]
    first = next(at for at, text in enumerate(names) if "missing" in text or "O_CREAT|O_CLOEXEC|O_DIRECTORY" in text)
    return calls[first:]


def shown(calls, name):
    return [call[1:] for call in calls if call[0] == name]


def test_arguments_results_and_errors(launch, tmp_path):
    calls = trace(launch, tmp_path)
    opened = [re.sub(r"^\w+=|, \w+=", ", ", arguments).lstrip(", ") for arguments, *_ in shown(calls, "open64")]
    assert opened[:5] == [
        r'"missing\n\"x", O_WRONLY|O_CREAT|O_CLOEXEC|O_DIRECTORY, 0600',
        '"absent/x", O_RDWR|O_APPEND|O_CLOEXEC',
        '"made", O_WRONLY|O_CREAT|O_TRUNC|O_CLOEXEC, 0640',
        '"made", O_RDONLY|O_CLOEXEC',
        '".", O_RDONLY|O_CLOEXEC|O_DIRECTORY',
    ]
    assert opened[-1] == "0x8 <fault>, O_RDONLY"
    results = [result for _, result, _ in shown(calls, "open64")]
    assert results[1] == "-1 ENOENT (No such file or directory)"
    assert results[-1] == "-1 EFAULT (Bad address)"
    written, read = shown(calls, "write")[0], shown(calls, "read")
    assert re.fullmatch(r'fd=\d+, buf="hello\\n\\x00\\x01x{56}"\.\.\., \w+=108', written[0])
    assert (written[1], read[0][1:]) == ("108", ("4", 'buf="hell"'))
    assert read[-1][1] == "-1 EBADF (Bad file descriptor)"
    assert shown(calls, "unlink")[-1] == ('name="made"', "-1 ENOENT (No such file or directory)", None)


@pytest.mark.stress
def test_socket_addresses_and_structures(launch, tmp_path):
    calls = trace(launch, tmp_path)
    (inet, inet_result, _), (unix, unix_result, _) = shown(calls, "connect")[-2:]
    assert 'sin_port=htons(1), sin_addr=inet_addr("127.0.0.1")}, len=16' in inet
    assert inet_result == "-1 ECONNREFUSED (Connection refused)"
    assert 'addr={sa_family=AF_UNIX, sun_path="nobody"}' in unix
    assert unix_result == "-1 ENOENT (No such file or directory)"
    found = next(call for call in shown(calls, "stat") if '"made"' in call[0])
    assert found[2] == "buf={st_mode=S_IFREG|0640, st_size=108, ...}"
    failed = next(call for call in shown(calls, "stat") if "below" in call[0])
    assert failed[1:] == ("-1 ENOTDIR (Not a directory)", None)


OF_SCRIPT = re.compile(r'"(missing.*|absent/x|made.*|\.|nobody)"|sa_family|"hell|^999')
"""What the calls have that the script makes itself."""


@pytest.mark.stress
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
def test_strace_shows_the_same(launch, tmp_path):
    """Paths, flags, texts, structures, results and errno of open, openat, read, write, stat, connect and unlink."""
    ours = trace(launch, tmp_path)
    shutil.rmtree(tmp_path / "place")
    (tmp_path / "place").mkdir()
    calls = "openat,read,write,stat,newfstatat,connect,unlink"
    command = ["strace", "-s", "64", "-e", f"trace={calls}", sys.executable, str(tmp_path / "app.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "ptrace" in done.stderr or done.returncode:
        pytest.skip("strace cannot trace here")
    found = re.findall(r"^(\w+)\((.*)\)\s+= (.*)$", done.stderr, re.MULTILINE)
    of_strace = [(of_system_call(*call[:2]), call[2]) for call in found]
    of_ours = [
        (of_function(arguments, stored), result) for _, arguments, result, stored in ours if "0x8" not in arguments
    ]
    shown = [comparable([call for call in calls if OF_SCRIPT.search(call[0])]) for calls in (of_ours, of_strace)]
    assert shown[0] == shown[1] and len(shown[0]) == 15


def of_system_call(name, arguments):
    """As the function of the C library has them."""
    arguments = arguments.removeprefix("AT_FDCWD, ")
    return arguments.removesuffix(", 0") if name == "newfstatat" else arguments


def of_function(arguments, stored):
    """Without names, and with what the function has stored where its pointer is."""
    values = re.sub(r"(^|, )(?:fd|file|oflag|mode|name|addr|len|buf|nbytes|n)=", r"\1", arguments)
    return re.sub(r"0x[0-9a-f]{5,}", lambda _: stored.partition("=")[2], values) if stored else values


def comparable(calls):
    """Descriptors and pointers differ, and strace writes bytes in octal."""
    return [
        (
            re.sub(r"^(?!999)\d+|0x[0-9a-f]{5,}", "N", arguments).encode().decode("unicode_escape"),
            re.sub(r"^\d$", "N", result),
        )
        for arguments, result in calls
    ]


@pytest.mark.stress
def test_without_strings_nothing_behind_pointers_is_recorded(launch, tmp_path):
    calls = trace(launch, tmp_path, "--no-strings")
    assert not [call for call in calls if '"' in f"{call[1]}{call[3]}"]
    assert re.fullmatch(r"fd=\d+, buf=0x\w+, \w+=108", shown(calls, "write")[0][0])


@pytest.mark.stress
def test_values_in_json(launch, tmp_path):
    (tmp_path / "text").write_text("abc")
    source = f"import os\nos.read(os.open({str(tmp_path / 'text')!r}, os.O_RDONLY), 9)\nos.path.exists('/no/such')\n"
    done = launch("--trace", "libc:open64", "--trace", "libc:read", "--trace", "libc:stat", source=source)
    calls = done.report["processes"][0]["calls"]
    opened = next(call for call in calls if call.get("strings", {}).get("file") == str(tmp_path / "text"))
    read = calls[calls.index(opened) + 1]
    assert opened["arguments"]["oflag"] == os.O_RDONLY | os.O_CLOEXEC
    assert (read["result"], read["stored"]) == (3, {"buf": "abc"})
    missing = next(call for call in calls if call.get("strings") == {"file": "/no/such"})
    assert (missing["result"], missing["errno"]) == (-1, "ENOENT")


@pytest.mark.stress
def test_a_child_that_c_code_has_forked_records_its_own_calls(launch):
    source = """
import ctypes, os, zlib
libc = ctypes.CDLL(None)
zlib.crc32(b"parent")
child = libc.fork()
if not child:
    for _ in range(3):
        zlib.crc32(b"child")
    libc._exit(0)
os.waitpid(child, 0)
"""
    processes = launch("--trace", "libz:crc32", source=source).report["processes"]
    assert sorted(len(process["calls"]) for process in processes) == [1, 3]
    assert [process["events_lost"] for process in processes] == [0, 0]


@pytest.mark.stress
def test_the_newest_values_are_kept(launch):
    """More calls than the ring buffer holds of a thread: the newest are there, and how many others there were is said."""
    source = "import os\nfd = os.open('/dev/null', os.O_WRONLY)\nfor i in range(70000): os.write(fd, b'%060d' % i)\n"
    done = launch("--trace", "libc:write", source=source, as_json=False)
    found = [int(number) for number in re.findall(r'buf="(\d{60})"', done.err)]
    assert found == list(range(70000 - len(found), 70000)) and len(found) > 30000
    assert "older events were overwritten" in done.err


@pytest.mark.stress
def test_floats_by_prototype(launch):
    source = "import math\nassert math.pow(2.0, 0.5) > 1\nassert math.fmod(7.5, 2.0) == 1.5\n"
    done = launch("--trace", "libm:fmod", source=source, as_json=False)
    assert re.search(r"fmod \[libm\]\(x=7.5, y=2\) = 1.5;", done.err), done.err
