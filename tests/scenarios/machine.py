"""A scenario being replayed: its log, its objects, the calls under way."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.scenarios.contexts import CALLS
from tests.scenarios.log import Log
from tests.scenarios.script import Rule
from tests.scenarios.targets import CallRoom, Targets

if TYPE_CHECKING:
    from tests.scenarios.probes import Probe

MOST_HANDLERS = 4


class NotSupported(Exception):
    """The scenario uses something that does not exist here; the message says what."""


class Machine:
    """What objects, handlers and steps of one scenario share."""

    def __init__(self, targets: Targets, rules: Sequence[Rule]) -> None:
        self.targets = targets
        self.log = Log()
        self.probes: dict[str, Probe] = {}
        self.calls: list[CallRoom] = []
        """The calls under way, innermost last."""
        self.active_handlers = 0
        self.settles = True
        """Whether steps about kprobes wait for the optimiser."""
        self.failures: list[BaseException] = []
        """What was raised where nothing can be raised: below native code."""
        self.at_midway: Callable[[], None] | None = None
        """The block that the next scn_midway runs."""
        self._rules = list(rules)

    def add_rule(self, rule: Rule) -> None:
        """One that counts from now on."""
        self._rules.append(rule)

    def rules_for(self, handler: str, number: int) -> list[tuple[str, ...]]:
        """The actions of one invocation of a handler."""
        return [rule.action for rule in self._rules if rule.handler == handler and rule.selects(number)]

    def probe(self, name: str) -> Probe:
        """The object called `name`. Raises NotSupported if it is not declared."""
        if name not in self.probes:
            raise NotSupported(f"no object {name!r} is declared")
        return self.probes[name]

    def call(self, words: Sequence[str]) -> str:
        """Carry out `call FUNC ARG...` or one of its variants; the result as the log writes it."""
        function, *arguments = map(self.targets.address, words[1:])
        room = CallRoom(arguments)
        self.calls.append(room)
        try:
            result = CALLS[words[0]](self.targets.call_address, room.words(function))
        finally:
            self.calls.pop()
        return self.targets.value(result)


def attempt(function: Callable[[], object]) -> str:
    """The result of an API call as the log writes it: a number, or the name of an errno."""
    try:
        result = function()
    except OSError as error:
        return f"-{errno.errorcode.get(error.errno or 0, str(error))}"
    return str(int(result)) if isinstance(result, int) else "0"
