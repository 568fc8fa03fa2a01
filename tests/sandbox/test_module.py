"""Loading IR: stubs are NOPs, symbols have addresses, functions can be called."""

from __future__ import annotations

import pytest

from sandbox import module
from sandbox.loading import load
from sandbox.module import ModuleState
from sandbox.program import ProgramError
from sandbox.stubs import NOP5
from sandbox.symbols import symbol_table

IR = """
@counter = global i64 5
define i64 @double_it(i64 %a) noinline {
  %r = mul i64 %a, 2
  ret i64 %r
}
define i64 @twice(i64 %a) {
  %x = call i64 @double_it(i64 %a)
  %y = call i64 @double_it(i64 %x)
  ret i64 %y
}
define i64 @hidden(i64 %a) "notrace" {
  ret i64 %a
}
"""


@pytest.fixture(params=["fentry", "mcount", "patchable"])
def loaded(request):
    program = load(IR, name="maths", flavour=request.param)
    yield program
    program.unload()


def test_every_stub_is_a_nop_when_loaded(loaded):
    assert [symbol.name for symbol in loaded.site_functions] == ["double_it", "twice"]
    for site, symbol in zip(loaded.sites, loaded.site_functions, strict=True):
        assert symbol.address <= site < symbol.end
        assert loaded.texts[0].read(site, 5) == NOP5


def test_functions_can_be_called(loaded):
    assert loaded["twice"](10) == 40
    assert str(loaded["twice"].signature) == "i64 twice(i64 a)"


def test_addresses_have_names(loaded):
    address = loaded["double_it"].address
    location = symbol_table.describe(address + 3)
    assert location.startswith("double_it+0x3/0x") and location.endswith(" [maths]")
    assert symbol_table.lookup("maths:counter") == loaded.data[0].address


def test_notifiers_hear_of_coming_and_going():
    events = []

    def notifier(event, program):
        events.append((event, program.name, program.state))

    module.register_module_notifier(notifier)
    try:
        load(IR, name="seen").unload()
    finally:
        module.unregister_module_notifier(notifier)
    states = [event for event, name, _ in events if name == "seen"]
    assert states == [ModuleState.COMING, ModuleState.LIVE, ModuleState.GOING]


def test_ir_that_does_not_parse_names_the_line():
    with pytest.raises(ProgramError, match=r"<broken>: the IR does not parse\n.*:2:"):
        load("define i64 @f() {\n  bogus\n}", name="broken")
