"""Small programs that end, print and fail in the ways that programs do: what `fprobe run` must not change."""

from __future__ import annotations

import io
import signal
import textwrap
import zipfile
from typing import NamedTuple


class Program(NamedTuple):
    """`words`: what follows `python`; `files`: name -> source, in its directory; `stdin`: what it reads."""

    words: tuple[str, ...]
    files: dict[str, str | bytes] = {}
    stdin: str = ""


def script(source: str, *arguments: str) -> Program:
    return Program(("app.py", *arguments), {"app.py": textwrap.dedent(source)})


def code(source: str, *arguments: str) -> Program:
    return Program(("-c", textwrap.dedent(source), *arguments))


def module(files: dict[str, str], *words: str) -> Program:
    return Program(("-m", *words), {name: textwrap.dedent(source) for name, source in files.items()})


def archive(source: str, inner: str = "inner.py") -> bytes:
    """A zip file with `source` as its `__main__`, as zipapp makes it, and a module."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("__main__.py", textwrap.dedent(source))
        made.writestr(inner, "own = 3\ndef fails(): raise LookupError(__name__)\n")
    return file.getvalue()


SIGNALS = ("HUP", "INT", "QUIT", "ILL", "TRAP", "BUS", "FPE", "USR1", "PIPE", "ALRM", "XCPU", "SYS")

WORKERS = """
    import multiprocessing, zlib

    def work(number):
        return number, len(zlib.compress(b"x" * number * 1000))

    if __name__ == "__main__":
        context = multiprocessing.get_context({method!r})
        with context.Pool(2) as pool:
            print(pool.map(work, range(6)))
        process = context.Process(target=work, args=(1,))
        process.start()
        process.join()
        print(process.exitcode)
    """

PROGRAMS = {
    "prints": script(
        "import sys; print(sys.argv, __name__, __file__, sys.path[0] != ''); print('e', file=sys.stderr)", "a b", "-x"
    ),
    "exit 0": script("import sys; sys.exit()"),
    "exit 3": script("import sys; sys.exit(3)"),
    "exit -1": script("raise SystemExit(-1)"),
    "exit with a message": script("import sys; sys.exit('no such thing')"),
    "exit from a function of atexit": script("import atexit, os; atexit.register(print, 'bye'); atexit.register(os._exit, 4)"),
    "os._exit": script("import os; print('not flushed', end=''); os._exit(5)"),
    "an exception": script("def f(): raise ValueError('x')\nf()"),
    "a chain of exceptions": script("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e"),
    "a syntax error": script("def f(:\n    pass"),
    "an exception in a destructor": script("class A:\n    def __del__(self): 1 / 0\nA()"),
    "a warning": script("import warnings; warnings.warn('careful')"),
    "an assertion in code": code("assert False, 'no'"),
    "code with arguments": code("import sys; print(sys.argv, sys.path[0] == '')", "1", "--stat"),
    "code that raises": code("def f():\n    raise OSError(2, 'x')\nf()"),
    "a module": module({"tool.py": "import sys; print(sys.argv[1:], __name__, __spec__.name)"}, "tool", "-v"),
    "a package": module({"pack/__init__.py": "", "pack/__main__.py": "print(__package__); raise SystemExit(7)"}, "pack"),
    "a missing module": module({}, "no_such_module"),
    "a module of the library": Program(("-m", "json.tool"), stdin='{"a": [1, 2]}'),
    "a script from standard input": Program(("-",), stdin="import sys; print(sys.argv, 1)"),
    "a directory": Program(("project", "x"), {"project/__main__.py": "import sys; print(sys.argv, __name__)"}),
    "reads standard input": Program(("app.py",), {"app.py": "print(input()[::-1])\ninput()"}, stdin="abc\n"),
    "SIGTERM": script("import os, signal; print('a', flush=True); os.kill(os.getpid(), signal.SIGTERM)"),
    "SIGKILL": script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    "SIGSEGV": script("import os, signal, zlib; zlib.compress(b'x'); os.kill(os.getpid(), signal.SIGSEGV)"),
    "a fault": script("import ctypes; ctypes.string_at(1)"),
    "os.abort": script("import os; os.abort()"),
    "faulthandler": script("import faulthandler, time; faulthandler.enable(); time.sleep(0.2); print(faulthandler.is_enabled())"),
    "KeyboardInterrupt": script("import os, signal; os.kill(os.getpid(), signal.SIGINT)"),
    "a signal that is handled": script(
        "import os, signal; signal.signal(10, lambda *a: print(a[0])); os.kill(os.getpid(), 10); print(signal.getsignal(2))"
    ),
    "signals as Python has them": script(
        "import signal; print([(n, signal.getsignal(n) if isinstance(signal.getsignal(n), int) else 'f') for n in range(1, 32)])"
        "; print(signal.pthread_sigmask(0, []))"
    ),
    "a broken pipe": script("import os, sys; r, w = os.pipe(); os.close(r); os.write(w, b'x')"),
    "the environment": script(
        """
        import os, sys
        print(sorted(name for name in os.environ if "PYTHON" in name or "FPROBE_RUN" in name))
        print([entry for entry in sys.path if "fprobe" in entry], "sitecustomize" in sys.modules)
        """
    ),
    "a sitecustomize of its own": Program(
        ("app.py",),
        {
            "app.py": "import sys, sitecustomize; print(sys.flags.optimize)",
            "sitecustomize.py": "import sys; 'app.py' in sys.orig_argv[1:2] and print('mine')",
        },
    ),
    "a thread left running": script(
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('t'))).start()"
    ),
    "a daemon left running": script(
        "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start(); print(1)"
    ),
    "an exception in a thread": script(
        "import threading; t = threading.Thread(target=lambda: 1 / 0, name='T'); t.start(); t.join()"
    ),
    "threads that compress": script(
        """
        import threading, zlib
        threads = [threading.Thread(target=lambda: [zlib.compress(b"x" * 999) for _ in range(50)]) for _ in range(4)]
        [t.start() for t in threads]; [t.join() for t in threads]; print("done")
        """
    ),
    "fork": script(
        """
        import os, sys, zlib
        for number in range(3):
            if not os.fork():
                zlib.compress(b"x"); print("child", flush=True); os._exit(number)
            print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
        """
    ),
    "a child that dies by a signal": script("import os, signal\nif not os.fork(): os.kill(os.getpid(), 9)\nprint(os.wait()[1])"),
    "subprocess": script(
        """
        import os, subprocess, sys
        print(subprocess.run([sys.executable, "-c", "import os; print(sorted(n for n in os.environ if 'PYTHON' in n))"],
                             env={**os.environ, "A": "1"}, capture_output=True))
        print(subprocess.run([sys.executable, "-I", "-c", "import zlib; print(1)"], capture_output=True).stdout)
        print(subprocess.getstatusoutput("echo out; exit 3"), subprocess.call(["false"]))
        try:
            subprocess.run(["no-such-program"])
        except FileNotFoundError as error:
            print(error)
        """
    ),
    "multiprocessing by fork": script(WORKERS.format(method="fork")),
    "multiprocessing by spawn": script(WORKERS.format(method="spawn")),
    "multiprocessing by forkserver": script(WORKERS.format(method="forkserver")),
    "closes all descriptors": script(
        """
        import os, zlib
        os.closerange(3, 4096)
        print(len(zlib.compress(b"x" * 1000)), os.open("app.py", os.O_RDONLY), flush=True)
        if not os.fork():
            os.closerange(0, 4096); zlib.compress(b"x"); os._exit(6)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        """
    ),
    "closes standard output": script("import os; os.close(1); os.write(2, b'x')"),
    "changes its directory": script("import os, zlib; os.chdir('/'); print(len(zlib.compress(b'x')), os.getcwd()); import json"),
    "exec of Python": script(
        "import os, sys; print(1, flush=True); os.execv(sys.executable, [sys.executable, '-c', 'print(2); exit(8)'])"
    ),
    "exec of another program": script("import os; os.execlp('sh', 'sh', '-c', 'echo $PPID | wc -l; exit 9')"),
    "becomes a daemon": script(
        """
        import os, time, zlib
        r, w = os.pipe()
        if os.fork():
            os.close(w); print(os.read(r, 9)); os._exit(0)
        os.setsid(); zlib.compress(b"x"); os.write(w, b"ready"); os._exit(0)
        """
    ),
    "closes every descriptor": script(
        "import os, zlib; os.closerange(0, 4096); zlib.compress(b'x'); os.open('app.py', os.O_RDONLY); os._exit(6)"
    ),
    "has few descriptors": script(
        "import os, resource, zlib; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); print(len(zlib.compress(b'x')))"
    ),
    "ends with every descriptor closed": script("import os, sys; os.closerange(0, 4096); sys.exit(7)"),
    "exec of itself": script(
        """
        import os, sys, zlib
        print(len(zlib.compress(b"x")), sys.argv[1:], flush=True)
        if len(sys.argv) < 4:
            os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
        """
    ),
    "exec with an empty environment": script(
        "import os, sys; os.execve(sys.executable, [sys.executable, '-c', 'import os; print(sorted(os.environ))'], {})"
    ),
    "exec of nothing": script("import os; os.execv('/no/such/program', ['x'])"),
    "other ways to start a program": script(
        """
        import os, sys
        words = [sys.executable, "-c", "import zlib; print(len(zlib.compress(b'x')), flush=True); exit(3)"]
        print(os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(words[0], words, os.environ), 0)[1]), flush=True)
        print(os.waitstatus_to_exitcode(os.spawnv(os.P_WAIT, words[0], words) << 8), flush=True)
        print(os.system("exit 5"), os.popen("echo popen").read())
        """
    ),
    "subprocess with an empty environment": script(
        """
        import subprocess, sys
        print(subprocess.run([sys.executable, "-c", "import os; print(sorted(os.environ))"], env={}, capture_output=True))
        print(subprocess.run([sys.executable, "-c", "import os; os.abort()"], close_fds=False).returncode)
        """
    ),
    "asyncio's subprocess": script(
        """
        import asyncio, sys
        async def main():
            made = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(input())", stdin=-1, stdout=-1)
            print(await made.communicate(b"in"), made.returncode)
        asyncio.run(main())
        """
    ),
    "a pool of processes": script(
        """
        import concurrent.futures, zlib
        if __name__ == "__main__":
            with concurrent.futures.ProcessPoolExecutor(2) as pool:
                print(list(pool.map(zlib.crc32, [b"a", b"b", b"c"])))
        """
    ),
    "odd values of SystemExit": script(
        """
        import os, sys
        class Odd:
            def __str__(self): raise ValueError("no text")
        for value in (None, True, 256, -257, 2**70, 1.5, "", b"x", (1, 2), [], Odd, Odd()):
            sys.stdout.flush()
            if not os.fork():
                raise SystemExit(value)
            print(os.waitstatus_to_exitcode(os.wait()[1]))
        raise SystemExit(1, 2)
        """
    ),
    "SystemExit in a thread": script(
        "import sys, threading; t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join(); print('after')"
    ),
    "os._exit in a thread": script(
        "import os, threading; threading.Thread(target=os._exit, args=(3,)).start(); threading.Event().wait()"
    ),
    "an exception in a function of atexit": script("import atexit; atexit.register(lambda: 1 / 0); print('end')"),
    "functions of atexit that compress": script(
        "import atexit, zlib; [atexit.register(lambda n=n: print(n, len(zlib.compress(b'x' * n)))) for n in range(3)]"
    ),
    "a thread that fails after the main one": script(
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), 1 / 0), name='T').start(); print(1)"
    ),
    "daemons that compress": script(
        """
        import threading, time, zlib
        def forever():
            while True: zlib.compress(b"x" * 999)
        [threading.Thread(target=forever, daemon=True).start() for _ in range(3)]; time.sleep(0.2); print("end")
        """
    ),
    "replaces its streams": script(
        "import io, sys; sys.stdout = io.StringIO(); print('hidden'); sys.stderr.write(sys.stdout.getvalue()); sys.stderr = None"
    ),
    "a stream whose flush fails": script(
        "import sys\nclass Bad:\n    def write(self, text): pass\n    def flush(self): raise OSError('full')\nsys.stdout = Bad()"
    ),
    "a full disk": script("import sys; sys.stdout = open('/dev/full', 'w'); print('x')"),
    "its own excepthook": script("import sys; sys.excepthook = lambda *a: print('hook', a[0].__name__); 1 / 0"),
    "too deep a recursion": script("def f(n): return f(n + 1)\nf(0)"),
    "traces itself": script(
        "import sys; sys.setprofile(lambda f, e, a: None); import zlib; zlib.crc32(b'x'); print(sys.getprofile() is not None)"
    ),
    "imports itself": script(
        """
        import __main__, pickle, app
        class A: pass
        print(__main__.__file__ == __file__, app.__name__) if __name__ == "__main__" else print("as", __name__)
        print(type(pickle.loads(pickle.dumps(A()))) is A)
        """
    ),
    "reads its own source": script("import inspect, sys\ndef f(): pass\nprint(inspect.getsource(f), sys.orig_argv[1:])"),
    "modules called like others": Program(
        ("app.py",),
        {
            "app.py": "import json, logging.deep, subprocess; print(json.own, logging.deep.own, subprocess.run is not None)",
            "json.py": "own = 1",
            "logging/__init__.py": "",
            "logging/deep.py": "own = 2",
            "struct/notes.txt": "a directory that is no package",
        },
    ),
    "a module called like others, by -m": module(
        {"tool.py": "import random; print(random.own)", "random.py": "own = 1"}, "tool"
    ),
    "an archive with modules called like others": Program(
        ("app.pyz",), {"app.pyz": archive("import json; print(json.own)", "json.py")}
    ),
    "a deleted directory": script(
        """
        import os, subprocess, sys, zlib
        os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
        print(len(zlib.compress(b"x")), subprocess.run([sys.executable, "-c", "import zlib; zlib.crc32(b'x')"]).returncode)
        os.getcwd()
        """
    ),
    "stops, and another process continues it": script(
        """
        import os, signal, time
        pid = os.getpid()
        if not os.fork():
            time.sleep(0.2); os.kill(pid, signal.SIGCONT); os._exit(0)
        os.kill(pid, signal.SIGSTOP); print("goes on")
        """
    ),
    "clears its environment": script(
        "import os, subprocess, sys; os.environ.clear()\n"
        "print(subprocess.run([sys.executable, '-c', 'import os; print(sorted(os.environ))'], capture_output=True))"
    ),
    "signals of asyncio": script(
        """
        import asyncio, os, signal
        async def main():
            seen = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, seen.set)
            os.kill(os.getpid(), signal.SIGTERM); await seen.wait(); print("seen")
            os.kill(os.getpid(), signal.SIGINT); await asyncio.sleep(9)
        asyncio.run(main())
        """
    ),
    "a server that starts itself again": script(
        """
        import os, subprocess, sys
        if os.environ.get("RUN_MAIN"):
            starts = len(os.listdir("starts")); open(f"starts/{starts}", "w").close(); print("serves", starts, flush=True)
            sys.exit(3 if starts < 2 else 0)
        os.makedirs("starts"); code = 3
        while code == 3:
            code = subprocess.run([sys.executable, *sys.argv], env={**os.environ, "RUN_MAIN": "1"}, close_fds=False).returncode
        __import__("shutil").rmtree("starts"); sys.exit(code)
        """
    ),
    "an interactive interpreter": script(
        """
        import subprocess, sys
        print(subprocess.run([sys.executable, "-i"], input=b"import zlib\\nzlib.crc32(b'')\\n1 / 0\\n", capture_output=True))
        """
    ),
    "pytest": module(
        {
            "test_it.py": """
            import os, zlib
            def test_passes(capfd):
                os.system("echo out"); assert zlib.crc32(b"") == 0 and capfd.readouterr() == ("out\\n", "")
            """
        },
        *("pytest", "-W", "error", "-p", "no:cacheprovider", "-v", "--no-header", "-r", "N", "--no-summary", "test_it.py"),
    ),
    "a child with an empty PYTHONPATH": script(
        """
        import os, subprocess, sys
        given = {**os.environ, "PYTHONPATH": ""}
        words = [sys.executable, "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.path)"]
        print(subprocess.run(words, env=given, capture_output=True))
        """
    ),
    "a script in latin-1": Program(
        ("app.py",), {"app.py": b"# coding: latin-1\nprint(len('\xe4\xf6'), ascii('\xe4'))\n1/0 # \xfc\n"}
    ),
    "a script that is not UTF-8": Program(("app.py",), {"app.py": b"print('\xe4')\n"}),
    "an archive": Program(("app.pyz", "x"), {"app.pyz": archive("import sys; print(sys.argv, __name__)")}),
    "an archive that fails": Program(("app.pyz",), {"app.pyz": archive("import inner\ninner.fails()")}),
    "an archive that is none": Program(("app.pyz",), {"app.pyz": b"PK\x03\x04 no archive"}),
    "a module in a package": module(
        {"pack/__init__.py": "print('init')", "pack/part.py": "print(__name__, __package__)"}, "pack.part"
    ),
    "a package without __main__": module({"pack/__init__.py": ""}, "pack"),
    "a module that fails": module({"tool.py": "def f(): raise OSError(13, 'denied')\nf()"}, "tool"),
    "code of several lines": code("import sys\n\nfor n in range(2):\n    print(n)\nsys.exit(n)"),
    "code with a syntax error": code("print('a'"),
    "code that reads": Program(("-c", "import sys; print(sys.stdin.read().upper())"), stdin="a\nb"),
    "removes itself": script("import os, zlib; os.remove('app.py'); print(len(zlib.compress(b'x')))\n1 / 0"),
    "an alarm": script("import signal, time; signal.setitimer(signal.ITIMER_REAL, 0.05); time.sleep(9)"),
    "a signal while it compresses": script(
        """
        import signal, zlib
        seen = []
        signal.signal(signal.SIGALRM, lambda *a: seen.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        while len(seen) < 50: zlib.compress(b"x" * 5000)
        signal.setitimer(signal.ITIMER_REAL, 0); print("seen")
        """
    ),
    "signals wait": script(
        "import os, signal; signal.pthread_sigmask(0, {15}); os.kill(os.getpid(), 15); print(signal.sigwait({15}))"
    ),
    **{
        f"SIG{name}": script(f"import os, signal, zlib; zlib.crc32(b'x'); os.kill(os.getpid(), {signal.Signals['SIG' + name]:d})")
        for name in SIGNALS
    },
    "the list of threads": script(
        "import threading, time, zlib; zlib.crc32(b'x')\n"
        "print([thread.name for thread in threading.enumerate()]); time.sleep(0.1); print(threading.active_count())"
    ),
    "asyncio": script("import asyncio; asyncio.run(asyncio.sleep(0.01)); print('slept')"),
}  # fmt: skip
