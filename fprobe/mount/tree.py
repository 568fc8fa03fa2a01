"""The tree as other programs see it: per_cpu/ and tracing_cpumask are about the machine's CPUs, whichever slots threads have."""

from __future__ import annotations

from ftrace.tracing.files.nodes import Node
from ftrace.tracing.tracefs.tree import Tracefs


class MountedTree(Tracefs):
    """The files of another tree."""

    def __init__(self, tree: Tracefs) -> None:
        super().__init__()
        self.root = tree.root

    def shown(self, node: Node) -> Node:
        """As tools open cpu0 to the last of the machine's CPUs and no more, each has the slots of its remainder."""
        return node.of_cpus or node
