"""Attaching to matched functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fprobe.cli.failure import FAILED, Failure

if TYPE_CHECKING:
    from fprobe.attachment import Attachment
    from fprobe.cli.match import Match


@contextmanager
def attached(match: Match, **options: Any) -> Iterator[Attachment[Any]]:
    """Attach handlers to the functions of `match` inside the block; `options`: as for `fprobe.attach`.

    Raises Failure with exit code 1 if they cannot be patched.
    """
    import fprobe

    probe = fprobe.attach(match.addresses, **options)
    try:
        probe.attach()
    except OSError as error:
        raise Failure(f"cannot attach: {error.strerror or error}", FAILED) from None
    try:
        yield probe
    finally:
        probe.detach()
