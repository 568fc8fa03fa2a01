"""The `trigger` file of an event: its grammar, and the event's triggers."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftrace.core.kstrtox import kstrtoull
from ftrace.hit.events.records import UNLIMITED
from ftrace.tracing.events.filters.filter_file import checked
from ftrace.tracing.events.filters.parser import SPACES
from ftrace.tracing.events.triggers.interfaces import EventFile, TraceInstance
from ftrace.tracing.events.triggers.trigger import (
    Condition,
    EnableTrigger,
    SnapshotTrigger,
    StacktraceTrigger,
    TracingTrigger,
    Trigger,
    enable_identity,
    trigger_image,
)

AVAILABLE = (
    "# Available triggers:\n"
    "# traceon traceoff snapshot stacktrace enable_event disable_event enable_hist disable_hist hist\n"
)
Command = Callable[["EventTriggers", str, str, bool], None]
"""command(triggers, name, parameters, remove): carries out a trigger command. Raises OSError."""


class EventTriggers:
    """The triggers of one event in one instance. Callers hold event_mutex."""

    def __init__(self, event: EventFile, instance: TraceInstance) -> None:
        self.event = event
        self.instance = instance
        self._triggers: list[Trigger] = []
        """Triggers in the file's order: the newest first; histograms at the end, in the order of their creation."""
        self._table: Any = None
        self._table_word = ctypes.c_uint64()

    @property
    def table_address(self) -> int:
        """Address of the word that holds the address of the event's TriggerTable, or 0 if there are no triggers."""
        return ctypes.addressof(self._table_word)

    def __bool__(self) -> bool:
        """Whether the event has triggers."""
        return bool(self._triggers)

    @property
    def need_record(self) -> bool:
        """Whether `run_triggers` must be called with the record."""
        return any(trigger.needs_record for trigger in self._triggers)

    @property
    def hists(self) -> list[Trigger]:
        """The histograms."""
        return [trigger for trigger in self._triggers if trigger.is_hist]

    @property
    def only_hist(self) -> Trigger | None:
        """The histogram, if it is the only trigger; else None."""
        return self._triggers[0] if len(self._triggers) == 1 and self._triggers[0].is_hist else None

    # -- the file -------------------------------------------------------------------------------------------------

    def read(self) -> str:
        """The text of the file."""
        return "".join(f"{trigger.line()}\n" for trigger in self._triggers) or AVAILABLE

    def write(self, text: str) -> None:
        """Carry out `[!]COMMAND[:PARAMETERS][ if FILTER]`. Raises OSError; then nothing has changed."""
        text = checked(text).strip(SPACES)
        remove = text.startswith("!")
        name, parameters = _command_and_rest(text[remove:])
        command = COMMANDS.get(name)
        if command is None:
            raise OSError(errno.EINVAL, f"the trigger is {name!r}; it must be one of {', '.join(COMMANDS)}")
        command(self, name, parameters, remove)

    def truncate(self) -> None:
        """Remove the histograms, as opening the file with O_TRUNC does. Other triggers are kept.

        As hist_unreg_all(): no histogram is removed if another event's histogram uses a variable of one of them.
        """
        if any(trigger.is_referred_to for trigger in self.hists):
            return
        for trigger in self.hists:
            self.remove(trigger)

    # -- the triggers ---------------------------------------------------------------------------------------------

    def find(self, identity: object) -> Trigger | None:
        """The trigger of that identity; None if there is none."""
        return next((trigger for trigger in self._triggers if trigger.identity == identity), None)

    def add(self, trigger: Trigger) -> None:
        """Add a trigger. Raises OSError; EEXIST if there is a trigger of the same identity."""
        if self.find(trigger.identity) is not None:
            raise OSError(
                errno.EEXIST,
                f"{self.event.group}/{self.event.name} already has a trigger {trigger.head}; remove it first",
            )
        trigger.register()
        try:
            self.event.hold()
        except BaseException:
            trigger.unregister()
            raise
        self._triggers.insert(len(self._triggers) if trigger.is_hist else 0, trigger)
        self._publish()

    def remove(self, trigger: Trigger) -> None:
        """Remove a trigger. It is kept until no hit in progress uses it."""
        self._triggers.remove(trigger)
        self._publish(trigger)
        trigger.unregister()
        self.event.release()

    def remove_all(self) -> None:
        """Remove every trigger, for an instance that is being removed."""
        for trigger in [*self._triggers]:
            self.remove(trigger)

    def _publish(self, removed: Trigger | None = None) -> None:
        """Publish the present triggers to hits. The previous table, and `removed`, are kept until no hit uses them."""
        old = self._table
        pointers = [ctypes.addressof(trigger.native) for trigger in self._triggers]
        self._table = (ctypes.c_uint64 * (2 + len(pointers)))(len(pointers), self.need_record, *pointers)
        self._table_word.value = ctypes.addressof(self._table) if pointers else 0
        trigger_image()
        self.event.changed()
        if old is not None:
            self.instance.free_after_hits((old, removed))

    # -- hits that Python makes -----------------------------------------------------------------------------------

    def run(self, record: bytes, is_reserved: bool = False) -> int:
        """Have the triggers act on a record before it is written. Returns the argument for `run_post` after the write.

        `is_reserved`: the kernel would have reserved the record, whether or not a trigger needs it.
        """
        if not self._triggers:
            return 0
        held = ctypes.create_string_buffer(record, len(record))
        seen = (ctypes.addressof(held), len(record)) if is_reserved or self.need_record else (0, 0)
        return self._call("run_triggers", *seen)

    def run_post(self, post: int, record: bytes) -> None:
        """Have the triggers act whose bits `run` returned, after the record was written."""
        if post and self._triggers:
            held = ctypes.create_string_buffer(record, len(record))
            self._call("run_post_triggers", post, ctypes.addressof(held), len(record))

    def _call(self, function: str, *arguments: int) -> int:
        used = self._table, tuple(self._triggers)  # keeps them alive until the call returns
        return trigger_image().call(function, ctypes.addressof(used[0]), *arguments, 0)


def _command_and_rest(text: str) -> tuple[str, str]:
    """Split after the command, which ends at a colon or a blank."""
    end = next((at for at, letter in enumerate(text) if letter in ": \t"), len(text))
    return text[:end], text[end + 1 :].lstrip(SPACES)


def separate_condition(parameters: str, required: bool) -> tuple[str, str]:
    """Split into parameters and condition: `2 if fd == 3` -> `2`, `if fd == 3`.

    Parameters that are not required must begin with a digit; other text is taken as a condition.
    """
    if not required and not (parameters[:1].isascii() and parameters[:1].isdigit()):
        return "", parameters
    end = next((at for at, letter in enumerate(parameters) if letter in " \t"), len(parameters))
    return parameters[:end], parameters[end + 1 :].lstrip(SPACES)


def parse_condition(text: str, triggers: EventTriggers) -> Condition | None:
    """The condition `if FILTER`. Raises OSError(EINVAL), for a filter with an entry in error_log."""
    if not text:
        return None
    end = next((at for at, letter in enumerate(text) if letter in " \t"), len(text))
    if text[:end] != "if" or end == len(text):
        raise OSError(errno.EINVAL, f"the condition is {text!r}; it must be `if FILTER`")
    return Condition(text[end + 1 :], triggers.event, triggers.instance)


def _count(text: str) -> int:
    """The count in `N[:...]`. Raises OSError: EINVAL, ERANGE."""
    return kstrtoull(text.partition(":")[0])


def _simple(triggers: EventTriggers, name: str, parameters: str, remove: bool) -> None:
    """traceon, traceoff, snapshot, stacktrace."""
    count, condition = separate_condition(parameters, required=False)
    if remove:
        identity = "traceonoff" if name.startswith("trace") else name
        _remove(triggers, identity)
        return
    left = _count(count) if count else UNLIMITED
    triggers.add(_SIMPLE[name](triggers.instance, parse_condition(condition, triggers), left))


_SIMPLE: Mapping[str, Callable[[TraceInstance, Condition | None, int], Trigger]] = {
    "traceon": lambda *arguments: TracingTrigger(True, *arguments),
    "traceoff": lambda *arguments: TracingTrigger(False, *arguments),
    "snapshot": SnapshotTrigger,
    "stacktrace": StacktraceTrigger,
}


def _enable(triggers: EventTriggers, name: str, parameters: str, remove: bool) -> None:
    """enable_event, disable_event, enable_hist, disable_hist: `GROUP:EVENT[:N]`."""
    words, condition = separate_condition(parameters, required=True)
    target, count = _target(triggers.instance, words.split(":", 2))
    if remove:
        _remove(triggers, enable_identity(name, target))
        return
    left = UNLIMITED if count is None else _count(count)
    triggers.add(EnableTrigger(name, target, parse_condition(condition, triggers), left))


def _target(instance: TraceInstance, words: Sequence[str]) -> tuple[EventFile, str | None]:
    """The event in `GROUP:EVENT[:COUNT]`, and the count as written."""
    if len(words) < 2:
        raise OSError(errno.EINVAL, f"the event is {':'.join(words)!r}; it must be GROUP:EVENT")
    found = instance.find_event(words[0], words[1])
    if found is None:
        raise OSError(
            errno.EINVAL, f"the event is {words[0]}:{words[1]}, which does not exist; available_events lists the events"
        )
    return found, words[2] if len(words) > 2 else None


def _remove(triggers: EventTriggers, identity: object) -> None:
    """Remove the trigger of that identity; if there is none, do nothing."""
    found = triggers.find(identity)
    if found is not None:
        triggers.remove(found)


COMMANDS: dict[str, Command] = {
    **dict.fromkeys(_SIMPLE, _simple),
    **dict.fromkeys(("enable_event", "disable_event", "enable_hist", "disable_hist"), _enable),
}
"""The commands by name. ftrace.tracing.events.hist adds `hist`."""
