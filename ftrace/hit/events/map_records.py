"""Histograms with variables or actions: all threads count in one table, since an entry's variables are for every thread's hits.

A hit's numbers lie in a pad, not on the stack, as the kernel's hist_pads do: a thread has one for each histogram that it is
counting in, since an action may generate an event with a histogram, and a signal's handler may be hit.
"""

from __future__ import annotations

from ftrace.hit.events.operations import (
    MAX_VARIABLES,
    NUMBER_KIND,
    STACK_WORDS,
    TEXT_KIND,
    CountedRecord,
    Program,
    Source,
    Value,
    begin_hit,
    compute,
    put_stack,
    put_text,
)
from ftrace.hit.events.records import Call
from ftrace.hit.events.tracing_map import MapHeader, TracingMap, find_or_make, look_up
from ftrace.hit.hashing import GOLDEN
from ftrace.hit.unwind.walk import StackPoint
from sandbox.native import *
from sandbox.threads.tasks import Task, current

MAX_HIST_CNT = 4
"""Histograms that a thread counts in at the same time, one within another."""
TEXT_ROOM = 256
"""Bytes of a text in an entry, with its final 0 (STR_VAR_LEN_MAX)."""
VARIABLE_HEAD = 16
"""Bytes of an entry's variable, after which its text or its stack lies: a word that is 1 while it is set, and its value."""
ON_MATCH, ON_MAX, ON_CHANGE = range(3)
DO_GENERATE, DO_SAVE, DO_SNAPSHOT = range(3)

task_get = extern("task_get", fn[ptr[Task]])


@struct
class MapKey(Structure):
    """A key. `words`: its size."""

    program: Program
    words: u64


@struct
class Assignment(Structure):
    """What is computed for an entry, and its place there: a variable, or a value that is saved."""

    program: Program
    at: u64


@struct
class Reference(Structure):
    """A variable of another histogram."""

    map: ptr[HistMap]
    at: u64  # its place in an entry
    extent: u64  # bytes of its text or stack
    is_used_up: u64  # whether reading unsets it


@struct
class Action(Structure):
    """`handler(...).kind(...)`."""

    handler: u64
    kind: u64
    variable: u64  # index of the variable that the handler compares
    tracked: u64  # place of its latest value in an entry
    saved: u64  # place of a word that is 1 once something is saved
    call: Call  # generates the event, or takes a snapshot
    argument: u64
    parameters: ptr[Assignment]
    count: u64


@struct
class HistMap(Structure):
    """A histogram, as hits use it."""

    map: TracingMap
    source: Source
    pads: u64  # address of the first thread's Pads
    sums: u64  # place of the sums in an entry
    keys: ptr[MapKey]
    key_count: u64
    values: ptr[Program]
    value_count: u64
    references: ptr[Reference]
    reference_count: u64
    variables: ptr[Assignment]
    variable_count: u64
    actions: ptr[Action]
    action_count: u64


@struct
class Pad(Structure):
    """The numbers of one hit."""

    hit: CountedRecord
    variables: array[Value, 16]
    own: array[Value, 16]
    key: array[u64, 48]
    parameters: array[Value, 64]


@struct
class Pads(Structure):
    """A thread's pads. `depth`: how many are in use."""

    depth: u64
    pads: array[Pad, 4]


@native(inline=True)
def running_task() -> ptr[Task]:
    """The running thread's task, which is claimed if it has none; null if none is free."""
    task = current()
    if unlikely(task == null):
        task = task_get()
    return task


@native(inline=True)
def mix(hash: u64, word: u64) -> u64:
    mixed = (hash ^ word) * GOLDEN
    return mixed ^ (mixed >> 32)


@native
def hash_of(key: ptr[u64], words: u64) -> u64:
    """A hash that is never 0."""
    hash: u64 = 0
    for word in range(words):
        if key[word] != 0:  # most of a text's words are 0
            hash = mix(hash + word, key[word])
    return hash | 1


@native
def put_key(program: ptr[Program], words: u64, hit: ptr[CountedRecord], to: ptr[u64]) -> void:
    """Compute a key into memory that is zero."""
    value: Value = zeroed
    compute(program, hit, addressof(value))
    if program.kind == NUMBER_KIND:
        to[0] = value.word
    elif program.kind == TEXT_KIND:
        put_text(cast(ptr[u8], to), words * 8, addressof(value))
    else:
        put_stack(to, words, addressof(value))


@native
def make_key(map: ptr[HistMap], pad: ptr[Pad]) -> u64:
    """Compute all keys. Returns their hash."""
    words = map.map.key_words
    key = addressof(pad.key[0])
    for word in range(words):
        key[word] = 0
    at: u64 = 0
    for index in range(map.key_count):
        field = addressof(map.keys[index])
        put_key(addressof(field.program), field.words, addressof(pad.hit), addressof(key[at]))
        at += field.words
    return hash_of(key, words)


@native
def read_variable(reference: ptr[Reference], map: ptr[HistMap], pad: ptr[Pad], mark: u64, value: ptr[Value]) -> bool_:
    """Read a variable of the other histogram's entry with the same key. False if it is not set.

    A longer key is the same if it begins with the other's: tracing_map_lookup() compares as much as the other has.
    """
    other = reference.map
    words = other.map.key_words
    if words > map.map.key_words:
        return False
    key = addressof(pad.key[0])
    its = mark if words == map.map.key_words else hash_of(key, words)
    entry = look_up(addressof(other.map), load(addressof(other.map.area), "acquire"), key, its)
    if entry == 0:
        return False
    variable = cast(ptr[u64], entry + reference.at)
    was_set: u64 = 0
    if reference.is_used_up != 0:
        was_set = atomic_exchange(addressof(variable[0]), 0, "acq_rel")
    else:
        was_set = load(addressof(variable[0]), "acquire")
    value.word = load(addressof(variable[1]), "relaxed")
    value.extent = reference.extent
    return was_set != 0


@native
def read_variables(map: ptr[HistMap], pad: ptr[Pad], mark: u64) -> bool_:
    """Read the variables of other histograms. False if one is not set: then the hit is not counted."""
    for index in range(map.reference_count):
        value = addressof(pad.variables[index])
        if not read_variable(addressof(map.references[index]), map, pad, mark, value):
            return False
    return True


@native
def assign(assignment: ptr[Assignment], hit: ptr[CountedRecord], entry: u64, own: ptr[Value]) -> void:
    """Compute a variable, and set it in the entry. `own`: its value for this hit's actions."""
    compute(addressof(assignment.program), hit, own)
    variable = cast(ptr[u64], entry + assignment.at)
    storage = cast(u64, addressof(variable[2]))
    if assignment.program.kind == TEXT_KIND:
        put_text(cast(ptr[u8], storage), TEXT_ROOM, own)
        own.word = storage
        own.extent = TEXT_ROOM
    elif assignment.program.kind != NUMBER_KIND:
        count = put_stack(cast(ptr[u64], storage), STACK_WORDS, own)
        if count < STACK_WORDS:
            cast(ptr[u64], storage)[count] = 0
        own.word = storage
        own.extent = STACK_WORDS * 8
    store(addressof(variable[1]), own.word, "relaxed")
    store(addressof(variable[0]), 1, "release")


@native
def has_moved(action: ptr[Action], hit: ptr[CountedRecord], entry: u64) -> bool_:
    """Whether the variable exceeds (onmax) or differs from (onchange) its last value, which is updated.

    Of a text or a stack the kernel, too, compares the address of the entry's copy: it moves once.
    """
    return moves(cast(ptr[u64], entry + action.tracked), hit.own[action.variable].word, action.handler)


@native
def moves(last: ptr[u64], value: u64, handler: u64) -> bool_:
    """Replace the last value by a greater (onmax) or another (onchange) one. Returns whether it did."""
    before = load(last, "relaxed")
    while value > before or (handler == ON_CHANGE and value != before):
        if atomic_cas(last, before, value, "acq_rel"):
            return True
        before = load(last, "relaxed")
    return False


@native
def save(action: ptr[Action], hit: ptr[CountedRecord], entry: u64) -> void:
    """Keep values of this hit in the entry; of a stack, which the kernel shows as a pointer, the innermost address."""
    value: Value = zeroed
    for index in range(action.count):
        parameter = addressof(action.parameters[index])
        compute(addressof(parameter.program), hit, addressof(value))
        to = entry + parameter.at
        if parameter.program.kind == TEXT_KIND:
            put_text(cast(ptr[u8], to), TEXT_ROOM, addressof(value))
        elif parameter.program.kind == NUMBER_KIND:
            store(cast(ptr[u64], to), value.word, "relaxed")
        elif put_stack(cast(ptr[u64], to), 1, addressof(value)) == 0:
            store(cast(ptr[u64], to), 0, "relaxed")
    store(cast(ptr[u64], entry + action.saved), 1, "release")


@native
def take_snapshot(action: ptr[Action], header: ptr[MapHeader], pad: ptr[Pad], entry: u64, number: u64) -> void:
    """Take a snapshot if the value also exceeds, or differs from, that of the last one, whatever its entry."""
    if moves(addressof(header.snapshot_value), pad.hit.own[action.variable].word, action.handler):
        header.snapshot_entry = entry
        header.snapshot_action = number
        action.call(action.argument, null, 0, pad.hit.point)


@native
def generate(action: ptr[Action], pad: ptr[Pad]) -> void:
    """Generate the action's synthetic event."""
    for index in range(action.count):
        program = addressof(action.parameters[index].program)
        compute(program, addressof(pad.hit), addressof(pad.parameters[index]))
    action.call(action.argument, cast(ptr[u8], addressof(pad.parameters)), action.count, pad.hit.point)


@native
def act_on(map: ptr[HistMap], header: ptr[MapHeader], pad: ptr[Pad], entry: u64, number: u64) -> void:
    """Carry out an action."""
    action = addressof(map.actions[number])
    if action.handler != ON_MATCH and not has_moved(action, addressof(pad.hit), entry):
        return
    if action.kind == DO_SAVE:
        save(action, addressof(pad.hit), entry)
    elif action.kind == DO_SNAPSHOT:
        take_snapshot(action, header, pad, entry, number)
    else:
        generate(action, pad)


@native
def update_entry(map: ptr[HistMap], hit: ptr[CountedRecord], entry: u64) -> void:
    """Add the values of a hit, and set the variables."""
    sums = cast(ptr[u64], entry + map.sums)
    atomic_add(addressof(sums[0]), 1, "relaxed")
    value: Value = zeroed
    for index in range(map.value_count):
        compute(addressof(map.values[index]), hit, addressof(value))
        atomic_add(addressof(sums[1 + index]), value.word, "relaxed")
    for index in range(min(map.variable_count, MAX_VARIABLES)):
        assign(addressof(map.variables[index]), hit, entry, addressof(hit.own[index]))


@native
def count_with(map: ptr[HistMap], pad: ptr[Pad]) -> void:
    """Count a hit, unless a variable that it needs is not set for its key."""
    mark = make_key(map, pad)
    if map.reference_count != 0 and not read_variables(map, pad, mark):
        return
    area = load(addressof(map.map.area), "acquire")
    header = cast(ptr[MapHeader], area)
    entry = find_or_make(addressof(map.map), area, addressof(pad.key[0]), mark)
    if entry == 0:
        atomic_add(addressof(header.dropped), 1, "relaxed")
        return
    atomic_add(addressof(header.hits), 1, "relaxed")
    update_entry(map, addressof(pad.hit), entry)
    for number in range(map.action_count):
        act_on(map, header, pad, entry, number)


@native
def count_in_map(argument: u64, record: ptr[u8], length: u64, point: ptr[StackPoint]) -> void:
    """The call of such a histogram's trigger. A hit within too many others is not counted, as get_hist_pad() has it."""
    map = cast(ptr[HistMap], argument)
    task = running_task()
    if task == null:
        return
    pads = addressof(cast(ptr[Pads], map.pads)[cast(u64, task.index)])
    depth = volatile_load(addressof(pads.depth))
    if depth >= MAX_HIST_CNT:
        return
    volatile_store(addressof(pads.depth), depth + 1)
    signal_fence()
    pad = addressof(pads.pads[depth])
    begin_hit(addressof(pad.hit), addressof(map.source), record, length, point)
    pad.hit.variables = addressof(pad.variables[0])
    pad.hit.own = addressof(pad.own[0])
    count_with(map, pad)
    signal_fence()
    volatile_store(addressof(pads.depth), depth)


FUNCTIONS = (count_in_map,)
