"""Loading and unloading: what is there afterwards, who hears of it, and what stands in the way."""

from __future__ import annotations

import errno
import gc
import re
import threading
import time

import llvmlite.binding as llvm
import pytest
from isolation import run_forked, run_source
from llvmlite import ir
from sampled import sampled

import sandbox
from sandbox import load
from sandbox.compile.codegen import ProgramError, initialize_llvm
from sandbox.compile.objectfile import StubError
from sandbox.loading import module
from sandbox.loading.linker import LinkError
from sandbox.loading.module import ModuleState
from sandbox.memory import mappings as memory
from sandbox.memory import pages
from sandbox.symbols.table import symbol_table
from sandbox.x86_64.encoding import NOP5

IR = """
@counter = global i64 5
@shared = common global [3 x i64] zeroinitializer
@hidden_data = internal constant [6 x i8] c"hello\\00"
define i64 @double_it(i64 %a) noinline {
  %r = mul i64 %a, 2
  ret i64 %r
}
define i64 @twice(i64 %a) {
  %x = call i64 @double_it(i64 %a)
  %y = call i64 @double_it(i64 %x)
  ret i64 %y
}
define internal i64 @elsewhere(i64 %a) section ".text.elsewhere" {
  ret i64 %a
}
define i64 @hidden(i64 %a) "notrace" {
  %r = call i64 @elsewhere(i64 %a)
  %p = load i8, ptr @hidden_data
  ret i64 %r
}
"""


@pytest.fixture(params=["fentry", "mcount", "patchable"])
def loaded(request):
    program = load(IR, name="maths", flavour=request.param)
    yield program
    program.unload()


@pytest.fixture
def notified():
    """Registers notifiers for the time of a test."""
    registered = []

    def register(notifier):
        module.register_module_notifier(notifier)
        registered.append(notifier)

    yield register
    for notifier in registered:
        module.unregister_module_notifier(notifier)


def owner(address: int) -> str:
    return next((path for start, end, _, path in memory.mappings() if start <= address < end), "")


def test_every_stub_is_a_nop_when_loaded(loaded):
    assert sorted(symbol.name for symbol in loaded.site_functions) == ["double_it", "elsewhere", "twice"]
    assert list(loaded.sites) == sorted(loaded.sites)
    for site, symbol in zip(loaded.sites, loaded.site_functions, strict=True):
        assert symbol.address <= site < symbol.end
        text = next(text for text in loaded.texts if site in text)
        assert text.read(site, 5) == NOP5


def test_text_is_named_after_the_module_and_never_writable_and_executable(loaded):
    assert "maths" in owner(loaded.sites[0])
    ours = [permissions for _, _, permissions, path in memory.mappings() if "maths" in path]
    assert ours and not [permissions for permissions in ours if "w" in permissions and "x" in permissions]


def test_what_is_written_through_the_alias_is_executed(loaded):
    site = next(s for s, symbol in zip(loaded.sites, loaded.site_functions, strict=True) if symbol.name == "twice")
    if loaded.site_kind == "mcount":
        pytest.skip("in the middle of a function there is more to do than to return")
    text = next(text for text in loaded.texts if site in text)
    text.write(site, bytes.fromhex("4889f8c390"))  # mov rax, rdi; ret
    pages.sync_cores()
    assert loaded["twice"](10) == 10
    text.write(site, NOP5)
    pages.sync_cores()
    assert loaded["twice"](10) == 40


def test_ipython_completes_the_names_of_functions(loaded):
    shell = pytest.importorskip("IPython.core.interactiveshell", reason="IPython is not installed")
    typed = 'program["tw'
    with pytest.warns(PendingDeprecationWarning):
        found = shell.InteractiveShell(user_ns={"program": loaded}).complete(None, typed, len(typed))
    assert found == ("tw", ["twice"])


def test_functions_can_be_called(loaded):
    assert loaded["twice"](10) == 40
    assert loaded["hidden"](3) == 3
    assert str(loaded["twice"].signature) == "i64 twice(i64 a)"
    assert loaded["twice"] is loaded["twice"]
    assert "twice" in loaded and "thrice" not in loaded


CALLED = """
import sys, sandbox
module = sandbox.load("define i64 @leaf(i64 %x) { ret i64 %x } define {i64, i64} @pair({i64, i64} %x) { ret {i64, i64} %x }")
known = set(sys.modules)
assert module["leaf"](4) == 4 and module["pair"]((1, 2)) == (1, 2)
print([name for name in set(sys.modules) - known if name.startswith("sandbox.")])
"""


def test_a_first_call_imports_nothing_so_a_signals_handler_may_make_it():
    done = run_source(CALLED)
    assert done.stdout == "[]\n", done.stderr


def test_addresses_have_names(loaded):
    function = loaded["double_it"]
    assert symbol_table.describe(function.address + 3) == f"double_it+0x3/{function.size:#x} [maths]"
    assert symbol_table.lookup("maths:counter") == next(s.address for s in loaded.data if s.name == "counter")
    assert {symbol.name: symbol.size for symbol in loaded.data} == {"counter": 8, "shared": 24, "hidden_data": 6}
    assert {s.section for s in loaded.functions} == {".text", ".text.elsewhere"}


def test_functions_that_are_not_there(loaded):
    with pytest.raises(LookupError, match=r"no function 'twise' in module 'maths'; did you mean twice\?"):
        loaded["twise"]


@pytest.mark.parametrize("opt", [0, 1, 2, 3])
def test_no_level_inlines_a_function_away(opt):
    program = load(IR, name="level", opt=opt)
    assert program["twice"](10) == 40
    assert len(program.sites) == 3
    program.unload()


def test_notrace_by_name():
    program = load(IR, name="some", notrace=["twice"])
    assert {symbol.name for symbol in program.site_functions} == {"double_it", "elsewhere"}
    program.unload()


def test_no_stubs_on_request():
    program = load(IR, name="bare", flavour="none")
    assert (program.site_kind, len(program.sites), program["twice"](1)) == ("none", 0, 4)
    program.unload()


def test_bitcode_and_llvmlite_modules():
    initialize_llvm()
    bitcode = llvm.parse_assembly(IR).as_bitcode()
    built = ir.Module("built")
    function = ir.Function(built, ir.FunctionType(ir.IntType(64), [ir.IntType(64)]), "plus_one")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(builder.add(function.args[0], ir.Constant(ir.IntType(64), 1)))
    first, second = load(bitcode, name="bitcode"), load(built, name="built")
    assert first["twice"](10) == 40 and len(first.sites) == 3
    assert second["plus_one"](1) == 2 and len(second.sites) == 1
    first.unload(), second.unload()


def test_files_are_named_after_themselves(tmp_path):
    text, bitcode = tmp_path / "text.ll", tmp_path / "my code.bc"
    text.write_text(IR)
    initialize_llvm()
    bitcode.write_bytes(llvm.parse_assembly(IR).as_bitcode())
    for path in (text, bitcode):
        program = load(path)
        assert program.name == path.stem.replace(" ", "_") and program["twice"](1) == 4
        program.unload()


def test_constructors_run_between_coming_and_live(notified):
    seen = []

    def look(event, program):
        if program.name == "built_up" and event is not ModuleState.GOING:
            seen.append((event, program["state"](), program.state))

    notified(look)
    program = load(
        """
        @value = global i64 0
        @llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [
          { i32, ptr, ptr } { i32 65535, ptr @init, ptr null }]
        define internal void @init() { store i64 42, ptr @value ret void }
        define i64 @state() { %v = load i64, ptr @value ret i64 %v }
        """,
        name="built_up",
    )
    assert seen == [(ModuleState.COMING, 0, ModuleState.COMING), (ModuleState.LIVE, 42, ModuleState.LIVE)]
    program.unload()


def test_whoever_registers_hears_of_modules_that_are_there(notified):
    program = load(IR, name="early")
    events = []
    notified(lambda event, program: events.append((event, program.name)))
    assert [event for event, name in events if name == "early"] == [ModuleState.COMING, ModuleState.LIVE]
    program.unload()
    assert events[-1] == (ModuleState.GOING, "early")


def test_an_unload_that_is_refused_leaves_everything_as_it_was(notified):
    events = []

    def busy(event, program):
        if event is ModuleState.GOING and blocked and program.name == "needed":
            raise OSError(errno.EBUSY, "frames in flight: twice")

    program = load(IR, name="needed")
    blocked = True
    notified(busy)
    notified(lambda event, program: events.append(event) if program.name == "needed" else None)  # told GOING first
    with pytest.raises(OSError, match="frames in flight: twice") as raised:
        program.unload()
    assert raised.value.errno == errno.EBUSY
    assert program.state is ModuleState.LIVE and program["twice"](1) == 4
    assert symbol_table.named("needed:twice")
    coming_and_live = [ModuleState.COMING, ModuleState.LIVE]
    assert events == [*coming_and_live, ModuleState.GOING, *coming_and_live]
    blocked = False
    program.unload()
    assert program.state is ModuleState.GONE


def test_a_notifier_that_fails_stops_the_load(notified):
    def fails(event, program):
        if event is ModuleState.COMING and program.name == "unwanted":
            raise RuntimeError("no room for its stubs")

    notified(fails)
    with pytest.raises(RuntimeError, match="no room"):
        load(IR, name="unwanted")
    assert not symbol_table.named("unwanted:twice")
    with pytest.raises(LookupError, match="no module 'unwanted' is loaded"):
        sandbox.find_module("unwanted")


def test_a_module_that_is_being_called_stays():
    program = load(
        "declare i32 @usleep(i32)\ndefine void @nap(i32 %us) { call i32 @usleep(i32 %us) ret void }", name="nap"
    )
    sleeper = threading.Thread(target=program["nap"], args=(300_000,))
    sleeper.start()
    time.sleep(0.05)
    with pytest.raises(OSError, match="module 'nap' is being called: nap") as raised:
        program.unload()
    assert raised.value.errno == errno.EBUSY
    sleeper.join()
    program.unload()


def test_unloading_gives_everything_back():
    def once():
        program = load(IR, name="passing")
        addresses = [symbol.address for symbol in (*program.functions, *program.data)]
        program.unload()
        program.unload()
        return addresses

    once()
    gc.collect()  # what other tests have dropped
    before = len(memory.mappings())
    for _ in range(20):
        addresses = once()
        assert not any(symbol_table.locate(address) for address in addresses)
    gc.collect()
    assert not [entry for entry in memory.mappings() if "passing" in entry[3]]
    assert len(memory.mappings()) - before < 15, "one mapping is left by each"


def test_an_unloaded_module_says_so():
    program = load(IR, name="gone")
    function = program["twice"]
    program.unload()
    assert program.state is ModuleState.GONE
    with pytest.raises(LookupError, match="module 'gone' is unloaded"):
        program["twice"]
    with pytest.raises(OSError, match=r"twice\(\) cannot be called: module 'gone' is unloaded"):
        function(1)


def test_a_module_that_nobody_holds_is_not_collected():
    address = load(IR, name="kept")["twice"].address
    gc.collect()
    assert "kept" in owner(address)
    assert sandbox.find_module("kept")["twice"](2) == 8
    sandbox.find_module("kept").unload()


@pytest.mark.parametrize("name", ["", "a b", "a:b", "[a]", "a*", "a/b", "a\0b"])
def test_names_that_cannot_be(name):
    with pytest.raises(ValueError, match=r"module name .* is invalid"):
        module.check_name(name)


def test_a_name_is_used_once():
    program = load(IR, name="one")
    with pytest.raises(ValueError, match="a module 'one' is already loaded"):
        load(IR, name="one")
    program.unload()
    load(IR, name="one").unload()


def test_names_are_found_where_none_is_given():
    first, second = load(IR), load(IR)
    assert first.name != second.name
    assert len(symbol_table.named("twice")) >= 2
    first.unload(), second.unload()


def test_symbols_of_the_process_are_found_and_missing_ones_named():
    program = load(
        "declare i64 @labs(i64)\ndefine i64 @f(i64 %a) { %r = call i64 @labs(i64 %a) ret i64 %r }", name="libc"
    )
    assert program["f"](-3) == 3
    program.unload()
    with pytest.raises(LinkError, match="module 'lost' refers to undefined symbols: nosuch1, nosuch2"):
        load(
            "declare void @nosuch1()\ndeclare void @nosuch2()\n"
            "define void @f() { call void @nosuch2() call void @nosuch1() ret void }",
            name="lost",
        )


def test_weak_symbols_may_be_missing():
    ir_text = """
    declare extern_weak void @nowhere_at_all()
    define i1 @missing() {
      %r = icmp eq ptr @nowhere_at_all, null
      ret i1 %r
    }
    """
    program = load(ir_text, name="weak")
    assert program["missing"]() is True
    program.unload()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "define i64 @f() {\n  bogus\n}",
            r"<bad>: the IR does not parse\n<bad>:2:3: error: expected instruction opcode",
        ),
        ("define i64 @f(i64 %a) {\n  ret i32 %b\n}", r"<bad>:2:7: error: value doesn't match function result type"),
        ("define void @f() {\n\0}", r"<bad>:2: the IR contains a NUL character"),
        (b"BC\xc0\xdejunk", r"<bad>: the bitcode does not parse"),
        (b"junk", r"<bad>: the bitcode does not parse"),
        ('define void @f() { call void asm "bogus", ""() ret void }', r"<bad>: LLVM cannot compile it: .*'bogus'"),
        ('module asm "bogus"', r"<bad>: LLVM cannot compile it: .*'bogus'"),
    ],
)
def test_a_source_that_does_not_compile_is_named(source, message):
    with pytest.raises(ProgramError, match=message):
        load(source, name="bad")


def test_files_that_are_not_programs(tmp_path):
    for name, contents, message in (
        ("x.ll", b"\xff\xfe", r"x.ll:1: neither bitcode nor UTF-8 text: byte 0xff"),
        ("x.py", b"", r"x.py: not a program: the suffix '.py' is none of .ll, .bc, .c"),
        ("y.ll", b"define", r"y.ll: the IR does not parse\n.*y.ll:1:7: error"),
    ):
        path = tmp_path / name
        path.write_bytes(contents)
        with pytest.raises(ProgramError, match=message):
            load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nosuch.ll")


def test_what_llvm_dies_of_is_reported(tmp_path):
    path = tmp_path / "scalable.ll"
    path.write_text("define <vscale x 4 x i32> @f(<vscale x 4 x i32> %a) { ret <vscale x 4 x i32> %a }")
    with pytest.raises(ProgramError, match=r"scalable.ll: LLVM cannot compile it: LLVM ERROR"):
        load(path)


LEAF = "define i64 @leaf(i64 %x) { ret i64 %x }"
UNLINKABLE = {
    "a huge variable": (
        f"@big = global [400000000000 x i8] zeroinitializer\n{LEAF}",
        r"unlinkable.ll: its code and variables take 4000000000\d\d bytes, 400000000000 of them in '.bss'; "
        r"the small code model allows 2130706432",
    ),
    "a number that does not fit": (
        f"@p = global i8 trunc (i64 ptrtoint (ptr @leaf to i64) to i8)\n{LEAF}",
        r"unlinkable.ll: LLVM cannot compile it: (Assertion|the compiling process was ended by SIG)",
    ),
    "an unknown relocation": (
        f'module asm ".quad leaf@SIZE"\n{LEAF}',
        r"unlinkable.ll: LLVM cannot compile it: LLVM ERROR: Relocation type not implemented yet!",
    ),
}


@pytest.mark.parametrize("kind", sampled(UNLINKABLE, 1))
def test_a_file_that_llvm_dies_of_when_it_links_is_reported(tmp_path, kind):
    text, message = UNLINKABLE[kind]
    path = tmp_path / "unlinkable.ll"
    path.write_text(text)
    done = run_forked(LOAD_BADLY.format(path=str(path)), 30)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert re.search(message, done.stdout), done.stdout
    again = run_forked(LOAD_BADLY.format(path=str(path)), 30)
    assert again.stdout == done.stdout, "and when it is in the cache"


LOAD_BADLY = """
from pathlib import Path
import sandbox
try:
    sandbox.load(Path({path!r}))
except ValueError as error:
    print(error)
    assert sandbox.load("define i64 @leaf(i64 %x) {{ ret i64 %x }}")["leaf"](4) == 4
"""
LIMITED = """
import resource
from pathlib import Path
import sandbox
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    sandbox.load(Path({path!r}))
except ValueError as error:
    print(error)
"""


def test_too_little_address_space_names_the_limit(tmp_path):
    path = tmp_path / "large.ll"
    path.write_text(f"@big = global [1500000000 x i8] zeroinitializer\n{LEAF}")
    done = run_source(LIMITED.format(path=str(path)))
    assert "RLIMIT_AS (ulimit -v) is 1073741824 bytes for this process; raise it" in done.stdout, done.stderr


def test_thread_local_variables_are_named_with_the_file(tmp_path):
    path = tmp_path / "tls.ll"
    path.write_text("@state = thread_local global i32 0\ndefine ptr @f() { ret ptr @state }")
    with pytest.raises(StubError, match=r"tls.ll: thread-local variable 'state'"):
        load(path)


def test_options_that_make_no_sense():
    with pytest.raises(ValueError, match="opt must be 0, 1, 2 or 3, not 4"):
        load(IR, name="x", opt=4)
    with pytest.raises(ValueError, match="no stub flavour 'xray'"):
        load(IR, name="x", flavour="xray")
    with pytest.raises(ProgramError, match="cflags are for C and C"):
        load(IR, name="x", cflags=["-O2"])


def test_the_second_load_comes_from_the_cache(monkeypatch):
    source = IR.replace("5", "6")
    load(source, name="cold").unload()
    monkeypatch.setattr("sandbox.compile.program._compile", lambda *_: pytest.fail("compiled again"))
    program = load(source, name="warm")
    assert program["twice"](10) == 40 and str(program["twice"].signature) == "i64 twice(i64 a)"
    program.unload()


@pytest.mark.parametrize("changes", [{"opt": 2}, {"flavour": "mcount"}, {"notrace": ["twice"]}])
def test_other_options_are_compiled_again(monkeypatch, tmp_path, changes):
    monkeypatch.setenv("FPROBE_CACHE_DIR", str(tmp_path))
    source = IR.replace("5", "7")
    load(source, name="cold").unload()
    compiled = []
    original = sandbox.compile.program._compile
    monkeypatch.setattr("sandbox.compile.program._compile", lambda *given: compiled.append(1) or original(*given))
    load(source, name="other", **changes).unload()
    assert compiled


@pytest.mark.stress
def test_a_program_of_thousands_of_functions():
    count = 5000
    source = "\n".join(f"define i64 @f{i}(i64 %a) {{ %r = add i64 %a, {i} ret i64 %r }}" for i in range(count))
    program = load(source, name="many", opt=0)
    assert len(program.sites) == len(set(program.site_functions)) == count
    assert program["f4999"](1) == 5000
    program.unload()
