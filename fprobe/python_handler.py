"""Python callables as handlers of an fprobe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ftrace.handlers import Resolved
from ftrace.hit.records import FOREIGN, PYTHON
from ftrace.python_handler import python_handler

if TYPE_CHECKING:
    from fprobe.registration import fprobe


def resolver_for(fp: fprobe) -> Callable[[Any, bool], Resolved]:
    """Makes Python handlers of `fp` callable: handler(fp, entry_ip, ret_ip, regs, entry_data)."""

    def make(handler: Callable[..., Any], is_exit: bool) -> Resolved:
        address, cookie, keep = python_handler(handler, fp, fp.errors.report, fp.entry_data_size, is_exit)
        return Resolved(address, FOREIGN | PYTHON, cookie=cookie, keep=keep)

    return make
