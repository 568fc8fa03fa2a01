"""All mutants."""

from __future__ import annotations

from tests.mutants.dispatching import ADOPTED, ENTRY, EXIT, FORK, MADE, QUIESCE, RECURSION
from tests.mutants.instructions import EMULATE, MAY_JUMP, MOVED, PATTERNS
from tests.mutants.mutant import Mutant
from tests.mutants.shadow_stack import CREDITS, NODES, SHADOW_STACK
from tests.mutants.trampolines import ALL_REGISTERS, COMPLETE, FAST, FOREIGN, MULTI_PROBE_SITES, SINGLE, STUBS

MUTANTS: tuple[Mutant, ...] = (
    *FAST, *MULTI_PROBE_SITES, *COMPLETE, *STUBS, *ALL_REGISTERS, *FOREIGN, *SINGLE,
    *ENTRY, *EXIT, *ADOPTED, *MADE, *RECURSION, *QUIESCE, *FORK,
    *SHADOW_STACK, *NODES, *CREDITS,
    *EMULATE, *MOVED, *MAY_JUMP, *PATTERNS,
)  # fmt: skip
