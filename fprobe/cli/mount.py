"""`fprobe mount`: the tracefs tree of a program as a directory, for cat, echo, shell scripts and trace-cmd."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from fprobe.cli import candidates
from fprobe.cli.console import Console
from fprobe.cli.options import CallingCommand, ProgramTarget, call_option, call_words, output_options, program_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.loading.module import Module

_EPILOG = """\b
Examples:
  mkdir t; fprobe mount t &
  cat t/available_filter_functions
  echo 'p:reads vfs_read count=%dx' > t/kprobe_events
  echo 1 > t/events/kprobes/enable
  echo demo_main 10 > t/fprobe/call; cat t/fprobe/call t/trace
  fprobe mount t --program prog.ll --call main 10

A line that is written to DIR/fprobe/call, `FUNC ARG...`, calls that function; the file shows the result of the last call. With
--call, that function is called again and again while the tree is mounted.
"""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command("mount", cls=CallingCommand, epilog=_EPILOG, short_help="Mount the files of tracefs on a directory.")
@click.argument("directory", metavar="DIR", shell_complete=candidates.files)
@call_option
@click.option("--core", is_flag=True, help="Show the program's functions without [module], as a kernel's own.")
@program_options
@output_options
def mount_command(directory: str, core: bool, target: ProgramTarget, console: Console) -> None:
    """Load the program, and mount its tracefs on the empty directory DIR, until Ctrl-C, SIGTERM or SIGHUP."""
    from fprobe.cli import program
    from fprobe.cli.failure import input_errors
    from fprobe.cli.interrupting import end_process
    from fprobe.mount import beside
    from fprobe.mount.call_file import CallFile
    from fprobe.mount.mounting import check_directory
    from fprobe.tracefs import mount, tracefs
    from sandbox.symbols import table
    from sandbox.threads.own_thread import OwnThread

    with input_errors():
        check_directory(directory)  # before the program is compiled
    module = program.load(target)
    if core:
        table.core.add(module.name)
    words = call_words()
    call = program.prepare_call(module, words, target) if words else None
    beside.add_to(tracefs)["call"] = CallFile(lambda text: _prepared(module, target, text))
    ending = threading.Event()
    for each in _ENDING:
        signal.signal(each, lambda *_: ending.set())
    with input_errors():
        mounted = mount(directory)
    with mounted:
        console.note(f"mounted on {mounted.directory}; Ctrl-C unmounts it")
        if call is not None:
            OwnThread(lambda: _repeat(call))
        ending.wait()
    end_process(0)


def _prepared(module: Module, target: ProgramTarget, text: str) -> Callable[[], Any]:
    from fprobe.cli.program import prepare_call

    return prepare_call(module, text.split(), target)


def _repeat(call: Callable[[], Any]) -> None:
    while True:
        call()
        time.sleep(0)  # lets others have the interpreter
