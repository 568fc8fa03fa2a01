"""The calls from Python into a module, counted, and refused once it is being unloaded."""

from __future__ import annotations

import errno


class Gate:
    """Lets calls into a module, and counts them, until it is closed. One for each module."""

    def __init__(self) -> None:
        self.running: list[str] = []
        """The name of the function of each call in progress."""
        self.closed = ""
        """Why calls are refused; empty while they are not."""

    def enter(self, name: str) -> None:
        """Note that a call of function `name` begins; `leave` must follow. Raises OSError(ESHUTDOWN) if closed."""
        # append and remove are atomic. A call is noted before it checks the gate; closing the gate precedes reading `running`.
        self.running.append(name)
        if self.closed:
            self.running.remove(name)
            raise OSError(errno.ESHUTDOWN, f"{name}() cannot be called: {self.closed}")

    def leave(self, name: str) -> None:
        """Note that a call of function `name` is over."""
        self.running.remove(name)
