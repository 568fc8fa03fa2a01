"""The native half of kprobes: one image, linked to the tracing runtime at the first registration."""

from __future__ import annotations

from ftrace.core.runtime import AddressTable, runtime
from ftrace.hit import address_table
from kprobes.hit import attribution, callbacks, control, faulting, kretprobe_entry, trap, vfork
from sandbox.memory.cpu import save_area
from sandbox.native import Unit
from sandbox.native.native_image import NativeImage
from sandbox.native.unit import Assembly
from sandbox.process import hooks
from sandbox.process.once import once
from sandbox.threads import signals
from sandbox.x86_64.save_area import SaveArea

FUNCTIONS = (
    address_table.table_set,
    trap.kprobe_trap,
    trap.kprobe_detour_hit,
    faulting.kprobe_fault,
    callbacks.kprobe_optimized_hit,
    callbacks.kprobe_ftrace_handler,
    kretprobe_entry.kprobe_return_handler,
    kretprobe_entry.kretprobe_in_list,
    kretprobe_entry.kretprobe_after_fork,
    control.kprobe_still_running,
    control.kprobe_running_here,
    control.kprobe_faulted,
    control.kprobe_left,
    attribution.kprobe_crash,
    vfork.vfork_as_fork,
)
"""The functions that Python, the signal dispatcher, the assembly and ftrace call."""


def _assembly(area: SaveArea) -> str:
    from kprobes.hit import assembly

    return assembly.text(area)


class KprobeRuntime:
    """The linked image, installed as a consumer of the synchronous signals."""

    def __init__(self) -> None:
        tracing = runtime()
        unit = Unit("kprobes-runtime", FUNCTIONS, assembly=Assembly(_assembly, (save_area(),)), bounded=False)
        self.image = NativeImage.of(unit, uses=tracing.image)
        self.image.variable("task_offset").value = tracing.key.offset
        attribution.write_report_texts(self.image)
        self.image.publish()
        hooks.own_code.add(self.image.__contains__)
        tracing.image.variable("leave_kprobe").value = self.image.address("kprobe_faulted")
        tracing.image.variable("abandon_kprobe").value = self.image.address("kprobe_left")
        self.table = AddressTable(self.image, self._publish_table)
        """From addresses to records (kprobes.hit.records). Written with `kprobe_mutex` held."""
        tracing.signals.add_consumer(signals.SIGTRAP, self.image.address("kprobe_trap"))
        for number in (signals.SIGSEGV, signals.SIGBUS, signals.SIGFPE, signals.SIGILL):
            tracing.signals.add_consumer(number, self.image.address("kprobe_fault"), first=True)
            tracing.signals.add_consumer(number, self.image.address("kprobe_crash"))

    def _publish_table(self, address: int) -> None:
        self.image.variable("kprobe_table").value = address


@once
def kprobe_runtime() -> KprobeRuntime:
    """The process-wide runtime; created at the first call."""
    return KprobeRuntime()
