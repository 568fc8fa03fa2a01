"""The Pythonic face: kprobes and kretprobes as context managers and decorators."""

from __future__ import annotations

import re
from typing import Any

from ftrace.attaching import Attaching
from kprobes import registration, returns
from kprobes.breakpoint.patching import patching
from kprobes.probe import KPROBE_FLAG_DISABLED, kprobe
from kprobes.registration import disable_kprobe, enable_kprobe, unregister_kprobe
from kprobes.returns import kretprobe, unregister_kretprobe

_PLACE = re.compile(r"(?P<symbol>.+?)(?:\+(?P<offset>0x[0-9a-fA-F]+|\d+))?$")

Target = str | int
"""`symbol`, `symbol+0x10`, `module:symbol`, `libz:deflate+8`; or an address."""


def place_of(target: Target) -> dict[str, Any]:
    """What a target says, as arguments of `kprobe`. Raises ValueError for an empty one."""
    if isinstance(target, int):
        return {"addr": target}
    match = _PLACE.match(target)
    if match is None:
        raise ValueError(f"{target!r} names no place: write a symbol, or symbol+offset")
    return {"symbol_name": match["symbol"], "offset": int(match["offset"] or "0", 0)}


class Attachment(Attaching):
    """A kprobe and where it is to be."""

    def __init__(self, target: Target, p: kprobe) -> None:
        self.target = target
        self.p = p
        self._declared = (p.addr, p.flags)

    @property
    def address(self) -> int | None:
        """Where it is."""
        return self.p.addr

    @property
    def nmissed(self) -> int:
        """Hits that called nobody, since a kprobe was being handled already."""
        return self.p.nmissed

    def attach(self) -> Attachment:
        """Attach now. Raises OSError as `register_kprobe` does."""
        registration.watch_modules()
        with patching():
            if not self.p.registered:
                self.p.addr, self.p.flags = self._declared
            registration.put_on(self.p)
        return self

    def detach(self) -> None:
        """Detach; when this returns no handler runs any more. Does nothing if it is not attached."""
        if self.p.registered:
            unregister_kprobe(self.p)

    def disable(self) -> None:
        """Stop calling the handlers for now."""
        disable_kprobe(self.p)

    def enable(self) -> None:
        """Call the handlers again."""
        enable_kprobe(self.p)


class ReturnAttachment(Attaching):
    """A kretprobe and the function whose returns it is on."""

    def __init__(self, target: Target, rp: kretprobe) -> None:
        self.target = target
        self.rp = rp
        self._declared = (rp.kp.addr, rp.kp.flags)

    @property
    def nmissed(self) -> int:
        """Calls for which no instance was free."""
        return self.rp.nmissed

    def attach(self) -> ReturnAttachment:
        """Attach now. Raises OSError as `register_kretprobe` does."""
        returns.make_ready()
        with patching():
            if not self.rp.registered:
                self.rp.kp.addr, self.rp.kp.flags = self._declared
            returns.put_on(self.rp)
        return self

    def detach(self) -> None:
        """Detach; calls under way return without the handler. Does nothing if it is not attached."""
        if self.rp.registered:
            unregister_kretprobe(self.rp)


def attach(
    target: Target, *, pre: Any = None, post: Any = None, fault: Any = None, disabled: bool = False
) -> Attachment:
    """Handlers before and after an instruction.

        with kprobes.attach("vfs_read+0x10", pre=lambda p, regs: print(regs.ax)) as probe:
            module["demo_main"](10)

    `target`: `symbol`, `symbol+offset`, `module:symbol`, `libz:deflate`, or an address. `pre(p, regs)`: what it returns is
    0 or None to go on, anything else to go on at regs.ip instead of executing the instruction. `post(p, regs, flags)`.
    Attaching raises OSError as `register_kprobe` does.
    """
    flags = KPROBE_FLAG_DISABLED * disabled
    made = kprobe(**place_of(target), pre_handler=pre, post_handler=post, fault_handler=fault, flags=flags)
    return Attachment(target, made)


def attach_return(
    target: Target, handler: Any = None, *, entry: Any = None, data_size: int = 0, maxactive: int = 0
) -> ReturnAttachment:
    """Handlers at the return, and at the entry, of a function.

        with kprobes.attach_return("vfs_read", lambda ri, regs: print(kprobes.regs_return_value(regs))):
            module["demo_main"](10)

    `handler(ri, regs)` runs when a call returns, `entry(ri, regs)` when it begins; non-zero: no `handler` for that call.
    `ri.data` are `data_size` bytes that they share. Attaching raises OSError as `register_kretprobe` does.
    """
    place = place_of(target)
    made = kretprobe(**place, handler=handler, entry_handler=entry, data_size=data_size, maxactive=maxactive)
    return ReturnAttachment(target, made)
