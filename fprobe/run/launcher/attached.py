"""Processes that already ran, with our probes in them until the report is wanted.

The part in the process is `fprobe.run.tracee.attached`. It makes the session's memory, which is opened here through the
process's own /proc directory, and a pipe: it detaches when something is written there, or when this process ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fprobe.run import session
from fprobe.run.launcher.forked import Guard, dismiss
from fprobe.run.launcher.objects import objects_for
from fprobe.run.launcher.remarks import shown_command
from fprobe.run.launcher.start_up import Progress, StartUp, no_progress
from fprobe.run.session import Settings
from sandbox.native.back.compile import StateOfFiles, state_of_files
from sandbox.process.printable import printable_line
from sandbox.remote import inject, limits, reach
from sandbox.remote.launched import HeldProgram
from sandbox.remote.refusals import Refused, check
from sandbox.x86_64 import fork_gate, remote_thread
from sandbox.x86_64.tsc import Ticks

if TYPE_CHECKING:
    from fprobe.run.launcher.results import Results

_BEGINS, _ARMS, _LEAVES = 30.0, 120.0, 15.0
"""Seconds in which a process must have begun to run our code, have its probes, and be without them."""
_POLLING = 0.02
_DESCRIPTORS = 8
"""Those that this process needs while it reads another one."""
_NO_DESCRIPTOR = "this process has too few file descriptors left; raise ulimit -n"
_STAYS = "it was forked while Python ran in its parent: it has no probes, but our memory and handlers of signals stay"
_FUTURE = "from __future__ import annotations\n"
_ENTERING = Path(session.__file__).parent / "tracee" / "entering.py"
_BROUGHT = _ENTERING.with_name("brought.py")
_PACKAGES = ("fprobe", "llvmlite", "capstone", "elftools", "pydemumble")


class Targets(NamedTuple):
    """The processes to attach to, for how many seconds (None: until Ctrl-C), and whether with child processes."""

    pids: tuple[int, ...]
    duration: float | None
    children: bool


def _task(pid: int, thread: int) -> int:
    """The number that a thread of a process has here, whose number in its own PID namespace is `thread`."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            lines = (task / "status").read_text(errors="replace").split("\n")
            numbers = next(line for line in lines if line.startswith("NSpid:"))
            if int(numbers.split()[-1]) == thread:
                return int(task.name)
    return thread


class Attached:
    """Process `pid`, with probes. Raises Refused, with the reason, if it cannot be attached to.

    `held`: it was started by this process, and is stopped at its entry. `start_up`: is told what is done.
    """

    def __init__(
        self,
        pid: int,
        settings: Settings,
        is_interrupted: Callable[[], bool] = lambda: False,
        held: HeldProgram | None = None,
        start_up: StartUp | None = None,
    ) -> None:
        self.pid = pid
        self._start_up = start_up or StartUp()
        self._is_interrupted = is_interrupted
        try:
            self._process = os.pidfd_open(pid)  # first: from here on the number cannot come to mean another process
        except OverflowError:
            raise Refused(f"there is no process {pid}", errno.ESRCH) from None
        except OSError as error:
            raise Refused(_unnumbered(pid, error), error.errno or errno.ESRCH) from None
        try:
            running, self._root = self._started(settings, held)
            is_brought = running.is_brought
            try:
                _prepare_report()
                self.counts, self.journal, self._pipe = self._opened(running)
            finally:
                running.close()
        except BaseException:
            os.close(self._process)
            raise
        self._over = select.poll()
        for each in (self._process, self._pipe):
            self._over.register(each, select.POLLIN if each == self._process else 0)
        self._guard = Guard(self.counts, self._process, _executed("settle_again()")) if is_brought else None
        try:
            self._start_up.follow(self.journal)
            self._wait_for("armed", _ARMS, is_interrupted)
            if held is None and not self.functions and self.is_over():
                raise Refused(f"process {pid} ended, or executed another program, before it had probes", errno.ESRCH)
        except BaseException:
            self._start_up.end()
            self.close()
            raise

    def _started(self, settings: Settings, held: HeldProgram | None) -> tuple[inject.Running, int | None]:
        """Check everything, then start our part. Returns its root directory, too, unless that is this process's."""
        check_memory_files()
        state = state_of_files()
        prepared = inject.prepare(self.pid, _source(settings, state), _executed(_SETTLING), is_held=held is not None)
        minor = None if prepared.brought is None else prepared.brought.interpreter.minor
        try:
            limits.check(self.pid)
            reach.check(self.pid, _files())
            self._start_up.say(f"compiling for process {self.pid}")
            self._objects = objects_for(self.pid, minor, _ENTERING.read_text(), _paths(), settings, state.settled)
            self._start_up.say(f"entering process {self.pid}")
            if held is not None:
                running = inject.start_held(prepared, self._process, held)
            else:
                running = inject.start(prepared, self._process)
            return running, reach.root_of(self.pid)
        except OSError as error:
            prepared.process.close()
            raise (
                error if isinstance(error, Refused) else Refused(f"process {self.pid} has ended", errno.ESRCH)
            ) from None

    @property
    def root(self) -> str:
        """A directory with the files that the process sees below its root; "" if they are those of this process."""
        return "" if self._root is None else f"/proc/self/fd/{self._root}"

    def results(self) -> Results:
        """What was counted."""
        from fprobe.run.launcher.results import read

        return read(self.counts, self.journal, self.root)

    def _opened(self, running: inject.Running) -> tuple[int, int, int]:
        """Open the descriptors that the process has made for us."""
        report = inject.wait(running, _BEGINS, self._is_interrupted)
        if self._is_interrupted() and not report:
            running.cancel()
            raise Refused(f"interrupted before process {self.pid} had its probes", errno.EINTR)
        if report is None or report[:1] != session.FILES_MADE:
            running.cancel()
            raise Refused(self._refusal(report, running.pthread_error()))
        try:
            return self._opened_files(report)
        except OSError as error:  # it has ended meanwhile, or this process was not running for seconds
            raise Refused(
                f"the memory of process {self.pid} could not be opened: {error.strerror}", errno.EPIPE
            ) from None

    def _opened_files(self, report: bytes) -> tuple[int, int, int]:
        _, thread, counts, journal, pipe = session.FILES.unpack_from(report)
        directory = f"/proc/{self.pid}/task/{_task(self.pid, thread)}/fd"
        found = [
            session.above_standard(os.open(f"{directory}/{number}", mode | os.O_CLOEXEC))
            for number, mode in ((counts, os.O_RDWR), (journal, os.O_RDWR | os.O_APPEND), (pipe, os.O_WRONLY))
        ]
        try:
            session.send_objects(found[0], self._objects)
        except OSError as error:
            if error.errno != errno.EFBIG:  # this process may not write files of that size: the target compiles itself
                raise
        os.write(found[2], session.OPENED)
        return found[0], found[1], found[2]

    def _refusal(self, report: bytes | None, error: int) -> str:
        if error:
            return f"process {self.pid} could not start a thread: {os.strerror(error)}"
        if report is None:
            why = "it has ended or executed another program, has not begun, or is being finalised"
            return f"process {self.pid} has no Python that runs: {why}"
        if not report:
            return f"process {self.pid} did not run Python code within {_BEGINS:.0f} s: a thread keeps the GIL"
        text = report[1:].split(b"\0", 1)[0].decode(errors="replace")
        return f"process {self.pid} cannot have probes: {text}"

    @property
    def command(self) -> list[str]:
        """Its command line."""
        return next((list(entry["argv"]) for entry in self._entries() if "argv" in entry), [])

    @property
    def functions(self) -> int:
        """The number of functions that have probes."""
        return sum(entry.get("attached", 0) for entry in self._entries())

    def undone(self) -> tuple[list[str], list[str]]:
        """A sentence for each event that could not be defined, and for each pattern that matches nothing so far."""
        waiting: dict[str, str] = {}
        errors = []
        for entry in self._entries():
            waiting = dict(entry.get("waiting", waiting))
            errors += [entry["error"]] if "error" in entry else []
        return errors, [*waiting.values()]

    def is_over(self, seconds: float = 0) -> bool:
        """Whether the process has ended, or has executed another program. Waits for that so long."""
        return bool(self._over.poll(seconds * 1000))

    def is_ended(self, seconds: float) -> bool:
        """Whether the process has ended. Waits for that so long."""
        return bool(select.select([self._process], [], [], seconds)[0])

    def detach(self) -> None:
        """Let the process remove the probes, and wait until it has. Raises Refused if it does not.

        So do the processes that C code has forked from it, if its interpreter was brought along.
        """
        with contextlib.suppress(OSError):
            os.write(self._pipe, session.LEAVE)
        self._wait_for("detached", _LEAVES)
        threads = [entry["thread"] for entry in self._entries() if "thread" in entry]
        end = time.monotonic() + _LEAVES
        while threads and Path(f"/proc/{self.pid}/task/{threads[0]}").exists() and time.monotonic() < end:
            if self.is_ended(_POLLING / 10):
                break
        if any("unrecorded" in entry for entry in self._entries()):
            self._dismiss_forked()
        self._end_guard(is_needed=False)

    def _end_guard(self, *, is_needed: bool) -> None:
        if self._guard is not None:
            self._guard.end(is_needed=is_needed)
            self._guard = None

    def _dismiss_forked(self) -> None:
        address = session.address_of(self.counts, self.journal)
        for pid in dismiss(self.counts, _descendants([self.pid]), _executed("settle_again()")):
            session.note(address, pid=pid, remark=_STAYS)

    def close(self) -> None:
        """Close all descriptors. A process that has probes detaches."""
        self._end_guard(is_needed=True)
        for each in (self._process, self.counts, self.journal, self._pipe, self._root):
            if each is not None:
                os.close(each)

    def _entries(self) -> Iterator[dict[str, Any]]:
        return session.entries(self.journal)

    def _wait_for(self, word: str, seconds: float, is_interrupted: Callable[[], bool] = lambda: False) -> None:
        """Wait until the process has written this word to the journal, or is over. Raises Refused if it takes too long."""
        end = time.monotonic() + seconds
        while not any(word in entry or "detached" in entry for entry in self._entries()):
            if self.is_over(_POLLING):
                return
            if is_interrupted():
                raise Refused(f"interrupted before process {self.pid} had its probes", errno.EINTR)
            if time.monotonic() > end:
                later = "; it detaches by itself as soon as it can" if word == "detached" else ""
                raise Refused(f"process {self.pid} was not {word} within {seconds:.0f} s{later}", errno.ETIMEDOUT)


class AttachedProcesses:
    """Several processes, attached one after the other. `is_interrupted`: whether they are not wanted any more."""

    def __init__(self, is_interrupted: Callable[[], bool]) -> None:
        self.members: list[Attached] = []
        self._is_interrupted = is_interrupted
        self.ticks = Ticks()
        self._end: float | None = None
        self.told: set[str] = set()
        """What was said of what they do not do."""

    def add(self, process: Attached) -> None:
        """Add a process, and say so, and what it does not do of what was asked for: otherwise only the end would tell."""
        self.members.append(process)
        number = process.functions
        functions = f"{number:,} function{'s' * (number != 1)}"
        _say(f"fprobe: attached to {process.pid} ({shown_command(process.command)}): {functions}; Ctrl-C ends")
        for text in chain(*process.undone()):
            if text not in self.told:
                self.told.add(text)
                _say(f"fprobe: {text}")

    def begin(self, duration: float | None) -> None:
        """All are attached: they are wanted for that many seconds from now."""
        self._end = None if duration is None else time.monotonic() + duration

    @property
    def is_wanted(self) -> bool:
        """Whether the time is not over, Ctrl-C was not pressed, and a process is there."""
        return not (
            self._is_interrupted()
            or (self._end is not None and time.monotonic() >= self._end)
            or all(each.is_over() for each in self.members)
        )

    def wait(self) -> None:
        """Wait as long as they are wanted."""
        while self.wait_until(time.monotonic() + 1):
            pass

    def wait_until(self, due: float, wakes: Sequence[int] = ()) -> bool:
        """Wait until this time of `time.monotonic`, or until one of the descriptors `wakes` is readable.

        Returns False as soon as they are not wanted.
        """
        while self.is_wanted:
            left = due - time.monotonic()
            if left <= 0 or select.select(wakes, [], [], min(_POLLING, left))[0]:
                return True
        return False

    def results(self) -> Results:
        """What was counted in all of them."""
        from fprobe.run.launcher.results import Results

        found = Results([], {}, 0)
        for each in self.members:
            found = found.joined(each.results())
        found.told = frozenset(self.told)
        return found

    def detach(self) -> None:
        """Detach from all. Raises the first Refused after that."""
        failures = []
        for each in self.members:
            try:
                each.detach()
            except Refused as failure:
                failures.append(failure)
        if failures:
            raise failures[0]


@contextlib.contextmanager
def attached(
    targets: Targets, settings: Settings, is_interrupted: Callable[[], bool], progress: Progress = no_progress
) -> Iterator[AttachedProcesses]:
    """The processes, attached inside the block. Raises Refused. `progress`: shows what is done for each."""
    processes = AttachedProcesses(is_interrupted)
    try:
        own = settings._replace(children=targets.children)
        for pid in targets.pids:
            start_up = StartUp(f"reading process {pid}")
            with progress(start_up.text_now):
                process = Attached(pid, own, is_interrupted, start_up=start_up)
            processes.add(process)
        for pid in _descendants(targets.pids) if targets.children else ():
            try:
                processes.add(Attached(pid, own, is_interrupted))
            except Refused as failure:  # of another program, or it has ended
                _say(f"fprobe: not attached: {failure.strerror}")
        processes.begin(targets.duration)
        yield processes
    finally:
        processes.detach()


def _descendants(pids: Sequence[int]) -> list[int]:
    """The processes that these have started, and those that these have started."""
    found = list(pids)
    for pid in found:  # which grows
        found += [each for each in _children(pid) if each not in found]
    return found[len(pids) :]


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(each) for task in tasks for each in (task / "children").read_text().split()]
    return []


def _say(text: str) -> None:
    sys.stderr.write(f"{printable_line(text)}\n")
    sys.stderr.flush()


def _unnumbered(pid: int, error: OSError) -> str:
    """Why there is no pidfd of the process."""
    if error.errno == errno.EMFILE:
        return _NO_DESCRIPTOR
    try:  # of a thread that is not the first, the number is none of a process
        check(pid)
    except Refused as refused:
        return str(refused.strerror)
    return f"there is no process {pid}" if error.errno == errno.ESRCH else f"process {pid}: {error.strerror}"


def check_memory_files() -> None:
    """Raise Refused if this kernel has no memory files, by which counters are shared, or this process has no descriptors left."""
    try:
        with contextlib.ExitStack() as opened:
            for _ in range(_DESCRIPTORS):
                opened.callback(os.close, os.memfd_create("fprobe-check", os.MFD_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise Refused(_NO_DESCRIPTOR, errno.EMFILE) from None
        raise Refused(f"memory files (memfd_create) are needed, and not possible here: {error.strerror}") from None


def _prepare_report() -> None:
    """Import what the report needs, while the process imports its part."""
    import fprobe.run.launcher.report  # noqa: F401


_SETTLING = (
    f"settle({inject.CONTEXT} + {remote_thread.GATE}, {fork_gate.FORKING}, {fork_gate.ENTER}, {fork_gate.LEAVE})"
)
"""What a brought interpreter runs first."""


def _source(settings: Settings, state: StateOfFiles) -> str:
    """The text that the process runs."""
    address = f"{inject.CONTEXT} + {remote_thread.STATUS}"
    call = f"{_ENTERING.read_text()}\nenter({address}, {_paths()!r}, {state.key!r}, {settings._asdict()!r})\n"
    return f"{_executed('settle_again()')}{_in_own_names(call)}"


def _executed(call: str) -> str:
    """The text that calls something of `fprobe.run.tracee.brought`."""
    return _in_own_names(f"{_BROUGHT.read_text()}\n{call}\n")


def _in_own_names(text: str) -> str:
    """Without the import of __future__: what fails before our part can report it would be printed by the program."""
    code = f"compile({text.replace(_FUTURE, '')!r}, 'fprobe', 'exec', {annotations.compiler_flag})"
    return f"exec({code}, {{'__name__': 'fprobe_attached'}})\n"


def _files() -> list[str]:
    """A file of each of the packages."""
    return [spec.origin for spec in map(find_spec, _PACKAGES) if spec is not None and spec.origin]


def _paths() -> list[str]:
    """The directories of our packages, and of those that they need."""
    found = []
    for name in _PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.origin:
            found.append(str(Path(spec.origin).parent.parent.absolute()))
    return list(dict.fromkeys(found))
