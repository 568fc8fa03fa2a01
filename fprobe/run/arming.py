"""Probes on what the program has loaded, and on what it loads later."""

from __future__ import annotations

import os
import threading
from typing import Any

from fprobe.run import probing, session
from fprobe.run.names import described
from fprobe.run.patterns import Pattern
from fprobe.run.session import Settings
from fprobe.run.table import Table
from sandbox.process import fork
from sandbox.symbols.libraries import Library, libraries


class Arming:
    """What has been armed in this process, and what waits for its library."""

    def __init__(self, address: str, settings: Settings) -> None:
        self._address = address
        self._patterns = [Pattern.parse(text) for text in settings.patterns]
        self._seen: set[tuple[str, int]] = set()
        self._lock = fork.renew(threading.RLock())
        self._kept: list[Any] = []
        counts = session.open_counts(address)
        try:
            self._table = Table(counts, settings.by, settings.with_events)
        finally:
            os.close(counts)

    def begin(self) -> None:
        """Arm what is loaded; watch for the rest."""
        self.look()
        if all(pattern.is_settled(self._seen_names()) for pattern in self._patterns):
            return
        from fprobe.run.watching import watch

        self._kept += watch(self.look)
        self.look()

    def look(self) -> None:
        """Arm what has been loaded since the last look, and tell the launcher. Nothing is raised: the program runs on."""
        try:
            with self._lock:
                for library in self._new():
                    for pattern in self._patterns:
                        if pattern.means(library.name):
                            self._arm(pattern, library)
        except Exception as error:
            session.note(self._address, error=f"{type(error).__name__}: {error}")

    def _new(self) -> list[Library]:
        found = [library for library in libraries() if (str(library.path), library.base) not in self._seen]
        self._seen.update((str(library.path), library.base) for library in found)
        if found:
            session.note(self._address, libraries=[described(library) for library in found])
        return found

    def _seen_names(self) -> set[str]:
        return {os.path.basename(path) for path, _ in self._seen}  # noqa: PTH119  # quicker than a Path each

    def _arm(self, pattern: Pattern, library: Library) -> None:
        try:
            armed = probing.arm(f"{library.name}:{pattern.functions}", self._table)
        except (LookupError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.args[0]
            session.note(self._address, skipped=[(str(pattern), str(reason))])
            return
        self._kept.append(armed.attachment)
        session.note(self._address, attached=armed.attached, skipped=armed.skipped)
