"""What goes wrong, as one sentence and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
"""Exit codes: the program or probe failed; the command line or the input is wrong; Ctrl-C."""


class Failure(click.ClickException):
    """Ends the command with `message` on stderr and `exit_code`."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it for classes, and reads it from instances

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message to `file`, or stderr."""
        click.echo(f"fprobe: {self.message}", file=file, err=file is None)


@contextmanager
def input_errors() -> Iterator[None]:
    """What the library raises for bad input, as a Failure with exit code 2."""
    try:
        yield
    except OSError as error:
        raise Failure(_os_error(error)) from None
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise Failure(str(error.args[0] if error.args else error)) from None


def _os_error(error: OSError) -> str:
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return error.strerror or str(error)


def of_call(error: BaseException) -> Failure:
    """What a call of a program's function raised. Values that do not fit are bad input; anything else is its failure."""
    if isinstance(error, (TypeError, ValueError, OverflowError)):
        return Failure(str(error))
    return Failure(f"the program failed: {describe(error)}", FAILED)


def describe(error: BaseException) -> str:
    """An exception as text; a fault of the program prints as its own report."""
    return str(error) or type(error).__name__
