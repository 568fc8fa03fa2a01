"""instances/: each directory is a trace array, as instance_mkdir() and instance_rmdir() in kernel/trace/trace.c."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from ftrace.events.registry import forget_array
from ftrace.events.trace_array import TraceArray, new_instance, trace_types_lock
from ftrace.filters.function_probes import clear_ftrace_function_probes
from ftrace.tracefs.nodes import Directory, HeldDirectory, Node
from ftrace.tracefs.trace_files import trace_array_files


class InstanceDirectory(HeldDirectory):
    """The directory of one instance, with its files."""

    def __init__(self, array: TraceArray) -> None:
        super().__init__(trace_array_files(array))
        self.array = array


class InstancesDirectory(Directory):
    """The directory `instances`."""

    def __init__(self) -> None:
        self._instances: dict[str, InstanceDirectory] = {}
        super().__init__(self._listed)

    def _listed(self) -> Mapping[str, Node]:
        return dict(self._instances)

    def make(self, name: str) -> None:
        """Create an instance. Raises OSError: EEXIST if the name is taken, ENOMEM if there are too many."""
        with trace_types_lock:
            if name in self._instances:
                raise OSError(errno.EEXIST, f"an instance {name!r} already exists")
            self._instances[name] = InstanceDirectory(new_instance(name))

    def remove(self, name: str) -> None:
        """Remove an instance and all that it contains. Raises OSError: ENOENT, EBUSY while one of its files is open."""
        with trace_types_lock:
            found = self._instances.get(name)
            if found is None:
                raise OSError(errno.ENOENT, f"no instance {name!r} exists")
            found.retire()
            del self._instances[name]
        clear_ftrace_function_probes(found.array)
        forget_array(found.array)
        found.array.close()
