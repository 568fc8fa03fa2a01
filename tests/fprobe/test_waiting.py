"""Hazard: a probe waits for code that never comes, and nothing says that its zero means nothing."""

from __future__ import annotations

import pytest
from isolation import isolated, run_forked
from sampled import sampled

JIT = """
import ctypes, logging
from llvmlite import binding
import fprobe, kprobes

binding.initialize_native_target(); binding.initialize_native_asmprinter()
binding.initialize_native_asmparser()
said = []
logging.getLogger("fprobe").addHandler(type("Said", (logging.Handler,), {"emit": lambda _, it: said.append(it.getMessage())})())

def compiled(name, attribute="", body="ret i64 %a"):
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(
        binding.parse_assembly(f"define i64 @{name}(i64 %a) {attribute} {{ {body} }}"), machine
    )
    engine.finalize_object()
    return engine, ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.get_function_address(name))
"""
ATTACH = {
    "fprobe": "lambda target: fprobe.attach(target, action=fprobe.Stat())",
    "kprobe": "lambda target: kprobes.attach(target, action=kprobes.Count())",
    "kretprobe": "lambda target: kprobes.attach_return(target, action=kprobes.Count())",
}


@pytest.mark.parametrize("attach", sampled(ATTACH.values(), 1), ids=ATTACH)
def test_a_name_that_no_compiler_makes(attach):
    source = f"""{JIT}
attach = {attach}
before = compiled("poly")
with attach("jit:pooly") as probe:
    before[1](1)
(sentence,) = said
assert sentence.startswith("'jit:pooly' was attached to nothing: no function of [jit] matches 'pooly'; did you mean jit:poly")
said.clear()
with attach("jit:tri*") as probe:
    after = compiled("triple")
    after[1](1)
assert (probe.hits, said) == (1, [])
probe = attach("jit:nothing").attach()
import atexit; atexit.register(lambda: print(*said, flush=True))
import ftrace.core.attaching as attaching; attaching._warn_all()
import sys; sys.exit()
"""
    done = run_forked(source, 60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("'jit:nothing' was attached to nothing: no function of [jit] matches 'nothing'") == 1


def test_a_name_whose_return_cannot_be_hooked():
    source = f"""{JIT}
reader = compiled("reader", "naked", 'call void asm sideeffect "mov (%rsp), %rax; ret", ""() unreachable')
with fprobe.attach("jit:reader", action=fprobe.Stat()) as probe:
    assert probe.skipped[0].name == "reader [jit]"
(sentence,) = said
assert sentence.startswith("'jit:reader' is attached to nothing so far: none of the functions can be traced: reader [jit]")
try:
    kprobes.attach_return("jit:reader", action=kprobes.Count()).attach()
except OSError as refused:
    assert "it reads its own return address" in str(refused) and "returns of" in str(refused)
else:
    raise AssertionError("not refused")
"""
    done = run_forked(source, 60)
    assert done.returncode == 0, done.stderr


@pytest.mark.stress
def test_one_name_of_a_list_is_there_and_the_other_is_not():
    source = f"""{JIT}
engine, poly = compiled("poly")
with kprobes.attach(["jit:poly", "jit:none+0"], action=kprobes.Count()) as probe:
    poly(1)
assert probe.hits == 1
(sentence,) = said
assert sentence.startswith("'jit:none' was attached to nothing: no function of [jit] matches 'none'"), sentence
"""
    done = run_forked(source, 60)
    assert done.returncode == 0, done.stderr


@isolated
def test_an_event_of_a_library_that_is_not_loaded() -> None:
    import logging

    import fprobe

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fprobe").addHandler(handler)
    with fprobe.event("p:z libnone:f"):
        pass
    (sentence,) = said
    assert sentence.startswith("z was attached to nothing: no module, library or other image 'libnone' is loaded")
