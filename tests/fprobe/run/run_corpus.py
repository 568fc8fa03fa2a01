"""Small programs that end, print and fail in the ways that programs do: what `fprobe run` must not change."""

from __future__ import annotations

import textwrap
from typing import NamedTuple


class Program(NamedTuple):
    """`words`: what follows `python`; `files`: name -> source, in its directory; `stdin`: what it reads."""

    words: tuple[str, ...]
    files: dict[str, str] = {}
    stdin: str = ""


def script(source: str, *arguments: str) -> Program:
    return Program(("app.py", *arguments), {"app.py": textwrap.dedent(source)})


def code(source: str, *arguments: str) -> Program:
    return Program(("-c", textwrap.dedent(source), *arguments))


def module(files: dict[str, str], *words: str) -> Program:
    return Program(("-m", *words), {name: textwrap.dedent(source) for name, source in files.items()})


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
    "a missing script": Program(("missing.py",)),
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
    "asyncio": script("import asyncio; asyncio.run(asyncio.sleep(0.01)); print('slept')"),
}  # fmt: skip
