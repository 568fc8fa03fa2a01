"""Probes on what the program has loaded, and on what it loads later."""

from __future__ import annotations

import os
import threading
from typing import Any

from fprobe.attachment import attach
from fprobe.run import session
from fprobe.run.names import described
from fprobe.run.patterns import Pattern, new_functions
from fprobe.run.probing import Calls
from fprobe.run.session import Settings
from fprobe.run.table import Table
from ftrace.filters.resolve import Found
from sandbox.process import fork
from sandbox.symbols.libraries import libraries


class Arming:
    """What has been armed in this process, and what waits for its library."""

    def __init__(self, address: str, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._patterns = [Pattern(text) for text in settings.patterns]
        self._libraries: set[tuple[str, int]] = set()
        self._known: dict[int, Found] = {}
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
        if all(pattern.is_settled for pattern in self._patterns):
            return
        from fprobe.run.watching import watch

        self._kept += watch(self.look)
        self.look()
        reasons = [(pattern.text, pattern.reason) for pattern in self._patterns if pattern.reason]
        session.note(self._address, waiting=reasons)

    def look(self) -> None:
        """Arm what has been loaded since the last look, and tell the launcher. Nothing is raised: the program runs on."""
        try:
            with self._lock:
                self._tell_libraries()
                for pattern in self._patterns:
                    functions = pattern.found()
                    new = list(new_functions(functions, self._known))
                    self._known |= {each.function.address: each for each in new}
                    told = [(each.function.address, each.function.name, each.image.name) for each in functions]
                    if new:
                        session.note(self._address, pattern=pattern.text, functions=told, skipped=self._arm(new))
        except Exception as error:
            session.note(self._address, error=f"{type(error).__name__}: {error}")

    def _arm(self, functions: list[Found]) -> list[tuple[str, str]]:
        """Attach to these functions; names and reasons of those that cannot be probed."""
        addresses = [each.function.address for each in functions]
        try:
            attachment = attach(addresses, action=Calls(self._table, self._settings.with_events)).attach()
        except OSError as error:
            return [(str(functions[0]), error.strerror or str(error))]
        self._kept.append(attachment)
        session.note(self._address, attached=len(attachment.functions))
        return [(skipped.name, skipped.reason) for skipped in attachment.skipped]

    def _tell_libraries(self) -> None:
        found = [library for library in libraries() if (str(library.path), library.base) not in self._libraries]
        self._libraries.update((str(library.path), library.base) for library in found)
        if found:
            session.note(self._address, libraries=[described(library) for library in found])
