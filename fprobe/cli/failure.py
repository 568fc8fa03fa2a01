"""Errors of the command line: a message and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import click

from sandbox.process.printable import printable_line

if TYPE_CHECKING:
    from sandbox.threads.faults import SandboxFault

FAILED, BAD_INPUT = 1, 2
"""Exit codes: the program or probe failed; the command line or the input is wrong."""


class Failure(click.ClickException):
    """Ends the command with `message` on stderr and `exit_code`; `details` are for JSON."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it for classes, and reads it from instances
        self.details = details or {}
        self.is_shown_as_json = False

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message to `file`, or stderr."""
        click.echo(printable_line(f"fprobe: {self.message}"), file=file, err=file is None)

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        return {"message": self.message, **self.details}


@contextmanager
def input_errors() -> Iterator[None]:
    """Turn the library's exceptions for bad input into a Failure with exit code 2, and a constructor's fault into one with 1."""
    try:
        yield
    except OSError as error:
        raise Failure(of_system(error)) from None
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise Failure(str(error)) from None
    except RuntimeError as error:
        from sandbox.threads.faults import SandboxFault

        if not isinstance(error, SandboxFault):
            raise
        raise _of_fault(error) from None


def of_system(error: OSError) -> str:
    """The message of an OSError, with the file if there is one."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return error.strerror or str(error)


def of_call(error: BaseException) -> Failure:
    """The Failure for an exception of a program's call. Values that do not fit are bad input; all others are failures."""
    from sandbox.threads.faults import SandboxFault

    if isinstance(error, SandboxFault):
        return _of_fault(error)
    if isinstance(error, (TypeError, ValueError, OverflowError)):
        return Failure(str(error))
    return Failure(f"the program failed: {type(error).__name__}: {error}", FAILED)


def _of_fault(fault: SandboxFault) -> Failure:
    """The report of a fault: the faulting code, the address, the source line, and the hooked calls in progress."""
    from sandbox.process.signal_names import signal_name

    name = signal_name(fault.signal)
    who = f"the {fault.handler}" if fault.handler else "a probe's handler" if fault.probe else "the program"
    accessed = f", accessing {fault.address:#x}" if name in ("SIGSEGV", "SIGBUS") else ""
    calls = [f"    {call}" for call in fault.shadow_stack] or ["    (no probed call)"]
    stack = ["  probed calls that had not returned, innermost first:", *calls]
    line = [f"  {fault.source.file}:{fault.source.line}", f"    {fault.source.text}"] if fault.source else []
    message = "\n".join([f"{who} faulted: {name} in {fault.location}{accessed}", *line, *stack])
    where = {"signal": name, "address": fault.address, "ip": fault.ip, "location": fault.location}
    details = {"in_handler": fault.probe, "shadow_stack": fault.shadow_stack, "registers": fault.registers}
    source = {"source": fault.source._asdict()} if fault.source else {}
    return Failure(message, FAILED, where | source | details)
