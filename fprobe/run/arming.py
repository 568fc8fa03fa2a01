"""Probes on what the program has loaded, and on what it loads later."""

from __future__ import annotations

import os

from fprobe.run import probing, session
from fprobe.run.names import described
from fprobe.run.session import Settings
from fprobe.run.table import Table
from sandbox.symbols.libraries import libraries


class Arming:
    """What has been armed in this process, and what waits for its library."""

    def __init__(self, address: str, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._seen: set[str] = set()
        self._table: Table | None = None
        self._armed: list[probing.Armed] = []

    def begin(self) -> None:
        """Arm what is loaded; watch for the rest."""
        counts = session.open_counts(self._address)
        try:
            self._table = Table(counts, self._settings.by)
        finally:
            os.close(counts)
        self.look()

    def look(self) -> None:
        """Arm what has been loaded since the last look, and tell the launcher."""
        assert self._table is not None
        loaded = [library for library in libraries() if str(library.path) not in self._seen]
        self._seen.update(str(library.path) for library in loaded)
        names = {library.name for library in loaded}
        session.note(self._address, libraries=[described(library) for library in loaded])
        for pattern in self._settings.patterns:
            armed = probing.arm(pattern, names, self._table)
            if armed is not None:
                self._armed.append(armed)
                session.note(self._address, attached=armed.attached, skipped=armed.skipped)
