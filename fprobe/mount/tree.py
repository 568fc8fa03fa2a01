"""The tree as other programs see it: in per_cpu/ a directory for each CPU of the machine, whichever slots threads have."""

from __future__ import annotations

from ftrace.tracing.files.nodes import Node
from ftrace.tracing.tracefs.trace_files import PerCpuDirectory
from ftrace.tracing.tracefs.tree import Tracefs


class MountedTree(Tracefs):
    """The files of another tree."""

    def __init__(self, tree: Tracefs) -> None:
        super().__init__()
        self.root = tree.root

    def shown(self, node: Node) -> Node:
        """As tools open cpu0 to the last of the machine's CPUs and no more, each has the slots of its remainder."""
        return node.of_cpus if isinstance(node, PerCpuDirectory) else node
