"""A small shell over the files of a tree: lists, pipes, redirections, `exec`, loops, functions, jobs and here-documents."""

from __future__ import annotations

import copy
import fnmatch
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from ftrace.tracing.files.nodes import Handle
from tests.busybox.descriptors import Descriptors, Sink, reader, redirected, refusal
from tests.busybox.expansion import Expansion
from tests.busybox.files import Files
from tests.busybox.grammar import (
    Background,
    Case,
    Command,
    For,
    Function,
    Group,
    If,
    IncompleteError,
    Redirection,
    Script,
    Simple,
    Subshell,
    UnsupportedError,
    While,
    parse_script,
)
from tests.busybox.tokens import ParameterError

__all__ = ["Descriptors", "IncompleteError", "KilledError", "Run", "Shell", "Sink", "UnsupportedError"]

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SPECIAL = (":", "break", "continue", "eval", "exec", "exit", "export", "return", "set", "shift", "trap", "unset")
"""Builtins whose redirections end the script if they fail."""
_NOT_SET = 2
"""The exit status of a script that needs a parameter which is not set."""


Run = Callable[["Shell", list[str], Descriptors], int]
"""run(shell, words, descriptors): runs a simple command and returns its exit status. Raises UnsupportedError."""


class _Exit(Exception):
    """`exit` has ended the script."""


class _Return(Exception):
    """`return` has ended a function."""


class _Jump(Exception):
    """`break` or `continue`, of so many loops."""

    def __init__(self, levels: int, *, ends: bool) -> None:
        super().__init__()
        self.levels, self.ends = levels, ends


class KilledError(Exception):
    """`timeout` or `kill` has ended the command."""


def number_of(word: str) -> int:
    """The number that a builtin is given. Raises ParameterError."""
    if not word.isdecimal():
        raise ParameterError(f"{word}: bad number")
    return int(word)


class Job:
    """A script that runs in the background, in a thread."""

    def __init__(self, shell: Shell, body: Script, fds: Descriptors) -> None:
        self._shell = shell
        self._thread = threading.Thread(target=self._run, args=(body, fds), name="sh-job", daemon=True)
        self._thread.start()

    def _run(self, body: Script, fds: Descriptors) -> None:
        try:
            self._shell.run_script(body, fds)
        except KilledError:
            self._shell.status = 143
        except UnsupportedError as unknown:
            fds[2].write(f"sh: {unknown}: not found\n".encode())
            self._shell.status = 127

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._thread.is_alive()

    def kill(self) -> None:
        """End it where it sleeps or waits for data."""
        self._shell.killed.set()

    def wait(self) -> int:
        """Wait for its end, and return its exit status."""
        self._thread.join()
        return self._shell.status


class Shell(Expansion):
    """Runs scripts, as `sh -c`. `run_program`: runs a simple command (tests.busybox.commands)."""

    def __init__(self, files: Files, run_program: Run) -> None:
        super().__init__()
        self.files = files
        self._run_program = run_program
        self.exported: set[str] = set()
        self.functions: dict[str, Command] = {}
        self.trap = ""
        """What runs at the end."""
        self.has_exited = False
        self.ends_at_failure = self.shows_commands = False
        self.locals: list[dict[str, str | None]] = []
        """For each function that is running, its caller's values of its local variables."""
        self.jobs: dict[str, Job] = {}
        self._outer_jobs: list[Job] = []
        """The jobs of the shell that this one is a subshell of."""
        self.deadline: float | None = None
        """When the commands are killed, by time.monotonic()."""
        self.killed = threading.Event()
        self.is_job = self._leaves_jobs = False
        self._loops = 0
        """How many loops are being run."""
        self._tested = 0
        """How many conditions are being run: a failure in one does not end the script."""
        self._held: list[Handle] = []
        """The handles that `exec` has opened."""
        self._fds: Descriptors = {0: None, 1: Sink(), 2: Sink()}

    def run(self, text: str, stdout: Any, stderr: Any, stdin: Any = None) -> int:
        """Run a script and return its exit status. Closes the handles that it leaves open.

        Raises UnsupportedError, before it runs any of a script with unsupported syntax.
        """
        return self.run_script(parse_script(text), {0: stdin, 1: stdout, 2: stderr})

    def run_script(self, script: Script, fds: Descriptors) -> int:
        """As `run`."""
        try:
            return self.run_part(script, fds)
        except (KeyboardInterrupt, SystemExit):
            self._leaves_jobs = True  # those that run native code cannot be ended
            raise
        finally:
            self.end(fds)

    def run_part(self, script: Script, fds: Descriptors) -> int:
        """Run a part of a script, without `end`. The descriptors that it opens are left in `fds`."""
        self._fds = fds
        try:
            self._run(script, fds)
        except _Exit:
            self.has_exited = True
        except (_Return, _Jump):
            pass
        except ParameterError as wrong:
            fds[2].write(f"sh: {wrong}\n".encode())
            self.has_exited, self.status = True, _NOT_SET
        return self.status

    def end(self, fds: Descriptors) -> None:
        """Run the trap, kill the jobs, and close the handles that are open."""
        trap, self.trap = self.trap, ""
        status = self.status
        try:
            if trap:
                self.run_part(parse_script(trap), fds)
        finally:
            for job in self.jobs.values():
                job.kill()
                if not self._leaves_jobs:
                    job.wait()
            self._hold([], {})
            self.status = status

    def copy(self, *, keeps_all: bool = True) -> Shell:
        """A shell for a subshell; for another script, without what is not exported."""
        made = Shell(copy.copy(self.files), self._run_program)
        made.deadline, made.killed, made.is_job = self.deadline, self.killed, self.is_job
        made._outer_jobs = self._known_jobs
        made.exported, made.variables = set(self.exported), dict(self.variables)
        if not keeps_all:
            made.variables = {name: self.variables[name] for name in self.exported if name in self.variables}
            return made
        made.arguments, made.status, made.functions = list(self.arguments), self.status, dict(self.functions)
        made.name, made.job = self.name, self.job
        made.ends_at_failure, made.refuses_unset = self.ends_at_failure, self.refuses_unset
        made._tested = self._tested
        return made

    # -- waiting --------------------------------------------------------------------------------------------------

    @property
    def has_running_jobs(self) -> bool:
        """Whether a job has not ended yet."""
        return any(job.is_running for job in self.jobs.values())

    @property
    def _known_jobs(self) -> list[Job]:
        return [*self._outer_jobs, *self.jobs.values()]

    @property
    def may_wait(self) -> bool:
        """Whether a command may wait for data: it can be killed, or something else runs that may write it."""
        return self.deadline is not None or self.is_job or any(job.is_running for job in self._known_jobs)

    def pause(self, seconds: float) -> None:
        """Sleep. Raises KilledError if the command is killed meanwhile."""
        left = seconds if self.deadline is None else min(seconds, self.deadline - time.monotonic())
        if self.killed.wait(max(left, 0)) or left < seconds:
            raise KilledError

    # -- commands -------------------------------------------------------------------------------------------------

    def _run(self, script: Script, fds: Descriptors) -> int:
        for index, pipeline in enumerate(script):
            if pipeline.condition != ";" and (pipeline.condition == "&&") != (self.status == 0):
                continue
            is_tested = pipeline.inverted or (index + 1 < len(script) and script[index + 1].condition != ";")
            self._tested += is_tested
            try:
                status = self._run_pipeline(pipeline.commands, fds)
            finally:
                self._tested -= is_tested
            self.status = int(status == 0) if pipeline.inverted else status
            if self.status and self.ends_at_failure and not is_tested and not self._tested:
                raise _Exit
        return self.status

    def _run_test(self, script: Script, fds: Descriptors) -> bool:
        """Run a condition."""
        self._tested += 1
        try:
            return self._run(script, fds) == 0
        finally:
            self._tested -= 1

    def _run_pipeline(self, commands: list[Command], fds: Descriptors) -> int:
        if len(commands) == 1:
            return self._run_command(commands[0], fds)
        stdin, status = fds[0], 0
        for index, command in enumerate(commands):
            own = {**fds, 0: stdin}
            if index < len(commands) - 1:
                own[1] = Sink()
            status = self._run_apart([command], own)
            if index < len(commands) - 1:
                stdin = reader(getattr(own[1], "data", b""))
        return status

    def _run_apart(self, commands: list[Command], fds: Descriptors) -> int:
        """Run commands in a subshell."""
        shell = self.copy()
        output = dict(fds)
        shell._fds = output
        try:
            for command in commands:
                shell.status = shell._run_command(command, output)
        except (_Exit, _Return, _Jump):
            pass
        finally:
            shell.end(output)
        return shell.status

    def _run_command(self, command: Command, fds: Descriptors) -> int:
        if isinstance(command, Background):
            return self._start(command.body, fds)
        if isinstance(command, Function):
            self.functions[command.name] = command.body
            return 0
        before, self.status = self.status, 0
        assignments, words = self._words(command, before)
        opened: list[Handle] = []
        own = dict(fds) if command.redirections else fds
        for redirection in command.redirections:
            if not self._redirect(redirection, own, opened):
                _close(opened)
                if words[:1] and words[0] in _SPECIAL:
                    self.status = 1
                    raise _Exit
                return 1
        if words == ["exec"]:
            fds.update(own)
            self._hold(opened, fds)
            return 0
        try:
            return self._execute(command, assignments, words, own)
        finally:
            _close(opened)

    def _start(self, body: Script, fds: Descriptors) -> int:
        """Run a script in the background."""
        shell = self.copy()
        shell.killed, shell.is_job = threading.Event(), True
        self.job = str(len(self.jobs) + 1)
        self.jobs[self.job] = Job(shell, body, {**fds, 0: None})
        return 0

    def _words(self, command: Command, status: int) -> tuple[list[tuple[str, str]], list[str]]:
        """A simple command's assignments and its words, expanded. `status`: that of the command before."""
        words = command.words if isinstance(command, Simple) else []
        assigned: list[re.Match[str]] = []
        while len(assigned) < len(words) and (found := _ASSIGNMENT.fullmatch(words[len(assigned)])):
            assigned.append(found)
        has_name = len(words) > len(assigned)
        self.status = status
        expanded = [field for word in words[len(assigned) :] for field in self.expand(word)]
        if isinstance(command, Simple) and not has_name:
            self.status = 0  # unless commands that a value stands for fail
        return [(each[1], self.text(each[2])) for each in assigned], expanded

    def _execute(self, command: Command, assignments: list[tuple[str, str]], words: list[str], fds: Descriptors) -> int:
        match command:
            case Group(body):
                return self._run(body, fds)
            case Subshell(body):
                return self._run_apart([Group(body)], fds)
            case For(name, values, body):
                given = self.arguments if values is None else [field for word in values for field in self.expand(word)]
                return self._run_for(name, list(given), body, fds)
            case While(condition, body, until):
                return self._run_while(condition, body, until, fds)
            case If(branches, otherwise):
                chosen = next((body for condition, body in branches if self._run_test(condition, fds)), otherwise)
                self.status = 0
                return self._run(chosen, fds)
            case Case(word, choices):
                return self._run_case(self.text(word), choices, fds)
        if not words:
            self.variables.update(assignments)
            return self.status
        return self._run_words(dict(assignments), words, fds)

    def _run_words(self, assignments: dict[str, str], words: list[str], fds: Descriptors) -> int:
        """Run a simple command; its assignments are for it alone."""
        if self.shows_commands:
            fds[2].write(f"+ {' '.join(words)}\n".encode())
        before = {name: self.variables.get(name) for name in assignments}
        added = assignments.keys() - self.exported
        self.variables.update(assignments)
        self.exported |= added
        try:
            if words[0] in self.functions:
                return self._call(self.functions[words[0]], words[1:], fds)
            return self._run_program(self, words, fds)
        finally:
            self.exported -= added
            self.restore(before)

    def run_words(self, words: list[str], fds: Descriptors) -> int:
        """Run a command by its words."""
        return self._run_words({}, words, fds)

    def restore(self, values: dict[str, str | None]) -> None:
        """Give variables their former values; None: they were not set."""
        for name, value in values.items():
            if value is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = value

    def _call(self, body: Command, arguments: list[str], fds: Descriptors) -> int:
        before, self.arguments = self.arguments, arguments
        self.locals.append({})
        try:
            return self._run_command(body, fds)
        except _Return:
            return self.status
        finally:
            self.arguments = before
            self.restore(self.locals.pop())

    def evaluate(self, text: str, fds: Descriptors) -> int:
        """Run a text in this shell, as `eval`."""
        self.status = 0
        return self._run(parse_script(text), fds)

    def leave(self, words: list[str]) -> int:
        """Run `exit`, `return`, `break` or `continue`, with its operand."""
        number = number_of(words[1]) if len(words) > 1 else None
        if words[0] in ("break", "continue"):
            if not self._loops:
                return 0
            raise _Jump(number or 1, ends=words[0] == "break")
        self.status = self.status if number is None else number & 0xFF
        raise _Exit if words[0] == "exit" else _Return

    # -- loops ----------------------------------------------------------------------------------------------------

    def _run_for(self, name: str, values: list[str], body: Script, fds: Descriptors) -> int:
        self.status = 0
        for value in values:
            self.variables[name] = value
            if self._run_body(body, fds):
                break
        return self.status

    def _run_while(self, condition: Script, body: Script, until: bool, fds: Descriptors) -> int:
        status = 0
        while self._run_test(condition, fds) != until:
            self.pause(0)
            ends = self._run_body(body, fds)
            status = self.status
            if ends:
                break
        self.status = status
        return status

    def _run_body(self, body: Script, fds: Descriptors) -> bool:
        """Run the body of a loop once. Returns whether it was left."""
        self._loops += 1
        try:
            self._run(body, fds)
        except _Jump as jump:
            self.status = 0
            if jump.levels > 1 and self._loops > 1:
                raise _Jump(jump.levels - 1, ends=jump.ends) from None
            return jump.ends
        finally:
            self._loops -= 1
        return False

    def _run_case(self, text: str, choices: list[tuple[list[str], Script]], fds: Descriptors) -> int:
        self.status = 0
        for patterns, body in choices:
            if any(fnmatch.fnmatchcase(text, self.pattern(pattern)) for pattern in patterns):
                return self._run(body, fds)
        return 0

    def output_of(self, script: str) -> str:
        """What a script writes to standard output, without the newlines at the end."""
        output = Sink()
        self.status = self._run_apart([Group(parse_script(script))], {**self._fds, 1: output})
        return output.data.decode("utf-8", "surrogateescape").rstrip("\n")

    # -- redirections ---------------------------------------------------------------------------------------------

    def _hold(self, opened: list[Handle], fds: Descriptors) -> None:
        """Keep the handles of `exec` that a descriptor still refers to, and close the others."""
        there = [*self._held, *opened]
        self._held = [handle for handle in there if any(handle is each for each in fds.values())]
        _close([handle for handle in there if handle not in self._held])

    def _redirect(self, redirection: Redirection, own: Descriptors, opened: list[Handle]) -> bool:
        """Redirect a descriptor of `own`. Returns whether that was possible; if not, a message is written."""
        operator, target = redirection.operator, self.text(redirection.target)
        try:
            own[redirection.fd] = redirected(self.files, operator, target, own, opened)
        except OSError as failed:
            own[2].write(refusal(operator, target, failed).encode())
            return False
        return True


def _close(handles: list[Handle]) -> None:
    for handle in handles:
        handle.close()
