"""Per-thread state, found in one load.

A *task* is the record of a thread that has hit a probe. Records are in one preallocated slab, `STRIDE` bytes apart: the `Task`
header and the shadow stack. The rows of `Counters` follow at the same stride, one line for each registered probe
(ftrace.core.counter_file). A thread finds its record through a `pthread` key whose offset from %fs is discovered at start-up: a
new thread reads 0 there and claims a record on its first hit; the key's destructor releases it.
This allocates nothing.
"""

from __future__ import annotations

from sandbox.native import *
from sandbox.x86_64.syscalls import SYS_GETTID

CAPACITY = 2048
"""Threads that can be inside probed code at the same time; one more counts misses with the cause `task`."""
STRIDE = 1 << 22
"""Bytes of address space per task."""
COUNTER_LINES = STRIDE // 64
"""Probes that can be registered at the same time."""

FREE, CLAIMED = 0, 1


ASYNCHRONOUS = 0xFFFF_FFFF_FFFF_FFFF & ~(1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10)
"""Every signal but ILL, TRAP, BUS, FPE and SEGV, which are never blocked: bit n - 1 is signal n."""


@struct
class Counters(Structure):
    """The counts of one task for one probe: a cache line, written only by its thread."""

    tally: u64  # low 48 bits: hits; high 16, signed: return nodes that this task may take without asking
    missed_recursion: u64
    missed_nodes: u64
    missed_busy: u64
    missed_depth: u64
    missed_context: u64
    missed_interpreter: u64
    granted: i64  # return nodes that this task has been given, whether calls have them or not


@struct
class Node(Structure):
    """A hooked call on the shadow stack."""

    parent: u64  # what the return slot held: where the stub returns to
    frame: u64  # address of the return slot, less marks (ftrace.hit.rethook); ftrace.hit.parking.PARKED is added
    stub: u64  # the return point of its stub
    probes: u64  # the ftrace ProbeList the call came in with, which it pins
    armed: u64  # bit i: the i-th probe of the list wants its exit; not kept for a list of one
    data: u64  # address of the entry data, if it is not inline_data; else free (kprobes.hit.records.Instance)
    record: u64  # its stub's StubRecord; set by the slow path only
    made: u64  # when (ftrace.hit.made); of a call that has returned, the next one to return (ftrace.hit.rethook.defer)
    inline_data: array[u64, 8]


@struct
class Guard(Structure):
    """A guarded call: where to continue if it faults."""

    target: u64
    parent: u64  # the return address
    sp: u64  # address of the return slot
    top: u64  # the newest node at the time
    rec: u64
    bx: u64
    bp: u64
    r12: u64
    r13: u64
    r14: u64
    r15: u64


GUARDS = 32
KPROBE_CTLBLK = 13
"""Words of a record that are kprobes' own."""


TEXT = 256


@struct
class Text(Structure):
    """A text that is printed in a crash; a 0 follows the `length` letters."""

    length: u64
    letters: array[u8, 256]


@struct
class Fault(Structure):
    """The last fault of a guarded call in this thread."""

    pending: u64
    signal: u64
    address: u64
    in_probe: u64
    registers: array[u64, 18]  # as in a ucontext: r8..r15, di, si, bp, bx, dx, ax, cx, sp, ip, flags
    calls: array[u64, 32]  # entry addresses of the hooked calls that had not returned, innermost first
    depth: u64
    handler: Text  # whose handler it was in, as far as the kprobes know


@struct
class ContextCall(Structure):
    """A call that is to be made in an interrupt-like context (sandbox.threads.contexts)."""

    address: u64
    arguments: array[u64, 8]
    result: u64


PYTHON_CALLS = 3


@struct
class PythonCall(Structure):
    """What the interpreter had in a thread when a Python handler was called (ftrace.hit.python_states)."""

    at: u64  # an address in the frame of its caller
    gil: u64  # what PyGILState_Ensure returned: 0 if the thread had the GIL
    chain: u64  # where the chain of frames begins
    frame: u64  # the innermost frame; 0: there was none
    place: u64  # the instruction in it
    words: array[u64, 8]
    halves: array[u32, 4]
    handled: array[u64, 3]  # the exception that was being handled


@struct
class Task(Structure):
    """A thread's record."""

    rec: u32  # recursion bits (ftrace.hit.recursion); 0 exactly when the thread is in no tracing code
    list: u32  # the low half of the ProbeList's address that it is in, or IN_NO_LIST; 0: unknown. Cleared with rec
    top: ptr[Node]  # the newest node
    limit: u64  # a node at this address or above does not fit; 0 while nodes are parked: only the slow path reserves one then
    bottom: ptr[Node]  # a sentinel that is no call
    data_top: u64  # entry data that does not fit a node is stacked here
    data_limit: u64
    kprobe: u64  # kprobe_running(): the kprobe being handled, or 0
    tid: u32
    state: u32
    errno: ptr[i32]
    preempt: u32
    index: u32
    context: u32  # 0 normal, 1 softirq, 2 irq, 3 nmi
    pid: u32  # the thread that its hits are shown as: `tid`, or one that it acts for (sandbox.threads.acting)
    hit_sp: (
        u64  # where the stack of the outermost hit begins, plus how to tell that it is intact (ftrace.hit.left_hits)
    )
    stack: u64  # the lowest address of the memory that the thread was started with as its stack
    stack_size: u64
    call: ptr[ContextCall]
    abandoned: u64  # nodes whose call never returned
    guard: ptr[Guard]  # where the next guarded call is noted
    guard_end: ptr[Guard]
    fault: Fault
    guards: array[Guard, GUARDS]
    serial: u64  # outermost hits that took the slow path
    nested: u64  # hits that began inside another one
    waiting: u64  # not 0 while the thread waits, inside a handler, for all others to come out of theirs
    kprobe_ctlblk: array[u64, KPROBE_CTLBLK]  # for kprobes (kprobes.hit.control); 0 when a thread gets the record
    nodes_end: u64  # `limit`, also while nodes are parked
    credit_pages: array[u64, 16]  # bit n: this task has had credits in the n-th page of its counter lines
    cancellable: u64  # not 0 while a Python or C handler has switched cancellation off (ftrace.hit.cancellation)
    python: u64  # an address in the frame of the innermost Python handler; 0: none is running (ftrace.hit.python_left)
    python_depth: u64  # how many Python handlers are running
    python_left: u64  # 1 more than the number of the call whose state is to be put back, since it has been left; or 0
    python_calls: array[PythonCall, PYTHON_CALLS]
    vectors: u64  # where the vector registers are kept while a Python or C handler runs (ftrace.core.handlers.floats); 0: nowhere
    adopts_from: u64  # the address of the record whose calls it takes over (ftrace.hit.adopted_calls), or 0
    acting_comm: array[u64, 2]  # the name of the thread that it acts for


IN_NO_LIST = 1
"""Task.list in an outermost hit of a kprobe."""

HITS_MASK = (1 << 48) - 1
CREDIT_UNIT = 1 << 48
HIT_WITH_CREDIT = 1 - CREDIT_UNIT
"""The amount that a hit adds to a tally when it takes a credit."""

HEADER = 4096 + 512
COUNTERS = CAPACITY * STRIDE + 5 * 4096
"""Offset of a task's first line from its record: the rows follow all records, at the same stride.

A few pages more than a power of two: way predictors hash the bits from 12 to 27 of an address, and of lines with one hash each
access to one evicts the other (measured: 25 ns a hit).
"""
FIRST_LINE = 8
"""Lines are handed out from this on: where the hot fields of a record are in a page, others would delay each other's loads."""
VARIABLES = HEADER
"""The offset of the per-task variables of native functions."""
VARIABLE_SPACE = 1024
NODES = VARIABLES + VARIABLE_SPACE
DATA_STACK = STRIDE - (1 << 18)
NODE = 128

slab = global_var(u64, 0, name="tasks_slab")
task_offset = global_var(u64, 0, name="task_offset")
AT_FS = "task_at_fs"
"""The symbol that has the value of `task_offset` in assembly, as an absolute one: it is known when an image is linked."""
claimed_high = global_var(u64, 0, name="tasks_claimed_high")  # one past the highest record ever claimed

errno_location = extern("__errno_location", fn[ptr[i32]])
pthread_setspecific = extern("pthread_setspecific", fn[i32, u32, u64])
task_key = global_var(u64, 0, name="task_key")

stack_field = global_var(u64, 0, name="stack_field")
"""Offset from %fs of the word with the lowest address of a thread's stack, which the size follows; 0 if unknown."""
tid_field = global_var(u64, 0, name="tid_field")
"""Offset from %fs of the word whose low half is the thread's tid; 0 if unknown."""
main_stack = global_var(u64, 0, name="main_stack")
main_stack_size = global_var(u64, 0, name="main_stack_size")
"""The same for the process's first thread, which has neither word."""


@native(inline=True)
def current() -> ptr[Task]:
    """The running thread's task, or null if it has none yet."""
    return cast(ptr[Task], read_fs(task_offset))


@native(inline=True)
def task_at(index: u64) -> ptr[Task]:
    return cast(ptr[Task], addressof(cast(ptr[u8], slab)[index * STRIDE]))


@native(inline=True)
def counters(task: ptr[Task], offset: u64) -> ptr[Counters]:
    return cast(ptr[Counters], addressof(cast(ptr[u8], task)[offset]))


@native(inline=True)
def own_stack() -> u64:
    """The lowest address of the memory that this thread was started with as its stack, if `stack_field` is known."""
    start = read_fs(stack_field)
    return start if start != 0 else main_stack


@native(inline=True)
def own_stack_size() -> u64:
    return read_fs(stack_field + 8) if read_fs(stack_field) != 0 else main_stack_size


@native
def find_stack(task: ptr[Task]) -> void:
    """Note where this thread's own stack is: everywhere, if that is not known."""
    task.stack = 0
    task.stack_size = 0xFFFF_FFFF_FFFF_FFFF
    if stack_field != 0:
        task.stack = own_stack()
        task.stack_size = own_stack_size()


@native
def clear_variables(task: ptr[Task]) -> void:
    """Zero a thread's variables, which a former owner of the record may have used."""
    words = cast(ptr[u64], addressof(cast(ptr[u8], task)[VARIABLES]))
    for index in range(VARIABLE_SPACE // 8):
        if words[index] != 0:
            words[index] = 0


@native
def task_reset(task: ptr[Task]) -> void:
    """Empty the shadow stack; counters and credits stay with the record when its owner changes."""
    base = cast(ptr[u8], task)
    bottom = cast(ptr[Node], addressof(base[NODES]))
    bottom.frame = 0xFFFF_FFFF_FFFF_FFFE
    bottom.stub = 0
    task.top = bottom
    signal_fence()  # unwinders search the records up to the first without a bottom
    task.bottom = bottom
    task.nodes_end = cast(u64, addressof(base[DATA_STACK - NODE]))
    task.limit = task.nodes_end
    task.data_top = cast(u64, addressof(base[DATA_STACK]))
    task.data_limit = cast(u64, addressof(base[STRIDE]))
    task.context = 0
    task.call = null
    task.kprobe = 0
    task.preempt = 0
    task.waiting = 0
    task.vectors = 0
    task.adopts_from = 0
    task.cancellable = 0
    task.python = 0
    task.python_depth = 0
    task.python_left = 0
    for index in range(KPROBE_CTLBLK):
        task.kprobe_ctlblk[index] = 0
    task.guard = addressof(task.guards[0])
    task.guard_end = addressof(task.guards[GUARDS - 1])
    task.fault.pending = 0
    task.fault.handler.length = 0
    clear_variables(task)
    task.list = 0
    task.rec = 0


@native
def task_search(start: u64) -> ptr[Task]:
    """Take the first free record at or after `start`."""
    index: u64 = start
    while index < CAPACITY:
        task = task_at(index)
        if load(addressof(task.state), "relaxed") == FREE and atomic_cas(
            addressof(task.state), FREE, CLAIMED, "acq_rel"
        ):
            task.index = cast(u32, index)
            return task
        index += 1
    return null


@native
def raise_high(index: u64) -> void:
    high = load(addressof(claimed_high), "relaxed")
    while index >= high and not atomic_cas(addressof(claimed_high), high, index + 1, "acq_rel"):
        high = load(addressof(claimed_high), "relaxed")


@native
def task_free(task: ptr[Task]) -> void:
    task_reset(task)
    task.tid = 0
    store(addressof(task.state), FREE, "release")


@native
def own_tid() -> u32:
    """gettid(), without a system call where the thread descriptor is known: a program's seccomp filter may end it for one."""
    if tid_field != 0:
        return cast(u32, read_fs(tid_field))
    return cast(u32, syscall(SYS_GETTID, 0, 0, 0, 0, 0, 0))


@native(noinline=True)
def task_claim() -> ptr[Task]:
    """Claim a record for this thread; null if none is left.

    A signal may come at any time, and its handler be hit: the record that is then claimed is the thread's, and this one is
    given back. A handler that jumps out of here (siglongjmp) leaves a record behind that nobody will use.
    """
    task = task_search(0)
    if task == null:
        return null
    task_reset(task)
    task.tid = own_tid()
    task.pid = task.tid
    task.errno = errno_location()
    find_stack(task)
    raise_high(cast(u64, task.index))
    own = cast(ptr[u64], read_fs(0) + task_offset)  # the descriptor begins with its own address
    if not single_cas(own, 0, cast(u64, task)):
        task_free(task)
    pthread_setspecific(cast(u32, task_key), cast(u64, current()))  # so that the key's destructor is called
    return current()


@native(noinline=True)
def task_get() -> ptr[Task]:
    """The running thread's task, claimed now if need be; null if the slab is full."""
    task = current()
    return task if task != null else task_claim()
