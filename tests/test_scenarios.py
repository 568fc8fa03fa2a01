"""The kernel's answers: every recorded scenario gives the same log here, and the comparison notices if it does not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from isolation import run_module

from tests.scenarios.differ import differences
from tests.scenarios.log import Line
from tests.scenarios.script import ScriptError, parse

DATA = Path(__file__).parent / "scenarios" / "data"
FILES = sorted(path.relative_to(DATA).as_posix() for path in DATA.rglob("*.scn"))
BATCHES = 2
"""Each is replayed in a process of its own, which costs more than the scenarios in it."""


def _replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module("tests.scenarios", *arguments, timeout=110)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_same_log_as_the_kernel(batch):
    files = FILES[batch::BATCHES]
    done = _replay("--json", *(str(DATA / file) for file in files))
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = {outcome["file"]: outcome["detail"] for outcome in outcomes if outcome["verdict"] != "passed"}
    assert not wrong, "\n".join(f"{file}: {detail}" for file, detail in wrong.items())
    assert len(outcomes) == len(files), f"{files[len(outcomes)]} was not reached: {done.stderr}"


def _file(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


# -- the command ------------------------------------------------------------------------------------------------


def test_a_log_that_differs_is_shown_and_fails(tmp_path):
    text = (DATA / "fp-order.scn").read_text()
    assert text.count("\n= 0") > 0
    done = _replay(_file(tmp_path, "wrong.scn", text.replace("\n= 0", "\n= 1", 1)), str(DATA / "fp-order.scn"))
    assert done.returncode == 1, done.stderr
    assert "-= 1\n+= 0\n" in done.stdout
    assert done.stdout.endswith("1 differs, 1 passed\n")


def test_a_script_without_a_log_prints_its_own(tmp_path):
    script = """
fprobe f entry exit data=8 show=stack0,sp,di
on f.entry 1 save 0 di
on f.entry 1 call scn_inner 1
on f.entry 3 return 1
register_fprobe_ips f scn_leaf+4
call scn_leaf 5
call scn_inner -2
nmissed f
hits f
"""
    done = _replay(_file(tmp_path, "new.scn", script))
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.splitlines()[1:]
        == """\
> register_fprobe_ips f scn_leaf+4
= 0
> call scn_leaf 5
  f.entry ip=scn_leaf@site ret=call regs.ip=scn_leaf@body data=[0] stack0=call sp=call-8 di=5
    - save 0 di
    - call scn_inner 1
      f.entry ip=scn_leaf@site ret=scn_inner@r1 regs.ip=scn_leaf@body data=[0] stack0=scn_inner@r1 sp=call-16 di=2
      f.exit ip=scn_leaf@site ret=scn_inner@r1 regs.ip=scn_inner@r1 rv=7 data=[0] stack0=call sp=call-8 di=2
    = 107
  f.exit ip=scn_leaf@site ret=call regs.ip=call rv=16 data=[5] stack0=0 sp=call+0 di=5
= 16
> call scn_inner -2
  f.entry ip=scn_leaf@site ret=scn_inner@r1 regs.ip=scn_leaf@body data=[0] stack0=scn_inner@r1 sp=call-16 di=-4
    - return 1
= 89
> nmissed f
= 0
> hits f
= 3 2
1 passed""".splitlines()
    )


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("fprobe f entry show=weather\nregister_fprobe f scn_add\ncall scn_add 1\n", "show=weather"),
        ("fprobe f entry\nteleport f\n", "not supported: teleport"),
        ("fprobe f entry\non f.entry sometimes return 1\n", "unreadable"),
        ("call scn_midway 1 {\nlist\n", "unreadable: a block is not closed"),
        ("call scn_nowhere 1\n", "failed"),
    ],
)
def test_what_cannot_be_replayed_is_told_apart(tmp_path, script, said):
    done = _replay(_file(tmp_path, "odd.scn", f"{script}---\n"))
    assert said in done.stdout
    assert "passed" not in done.stdout


def test_a_scenario_leaves_nothing_behind(tmp_path):
    first = "fprobe f entry\nregister_fprobe f scn_*\nsysctl ftrace_enabled 0\nbusycall scn_add 1 2\n"
    second = "fprobe f entry show=running\nenabled_functions\nsysctl ftrace_enabled\nregister_fprobe f scn_add\n"
    second += "call scn_add 1 2\n"
    done = _replay(_file(tmp_path, "1.scn", first), _file(tmp_path, "2.scn", second))
    assert done.returncode == 0, done.stderr
    log = done.stdout[done.stdout.index("2.scn") :].splitlines()[1:]
    assert log[:3] == ["> enabled_functions", "> sysctl ftrace_enabled", "= 1"]
    assert log[6].startswith("  f.entry ip=scn_add@site") and log[6].endswith("running=0")


def test_calls_in_other_contexts_need_no_probe(tmp_path):
    script = "softcall scn_add 1 2\nirqcall scn_add 3 4\n"
    log = "> softcall scn_add 1 2\n= 3\n> irqcall scn_add 3 4\n= 7\n"
    done = _replay(_file(tmp_path, "bare.scn", f"{script}---\n{log}"))
    assert done.stdout == "1 passed\n"


def test_interrupts_nest_although_there_is_an_alternate_signal_stack(tmp_path):
    script = (
        "ops o lock\non o.func * irqcall scn_leaf 1\nset_filter o scn_leaf reset=1\nregister_ops o\ncall scn_leaf 0\n"
    )
    script += "hits o\nnmissed o\n"
    done = _replay(_file(tmp_path, "deep.scn", script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("> hits o\n= 3 0\n> nmissed o\n= 1\n1 passed\n"), done.stdout


def test_a_registration_that_failed_has_not_been_one(tmp_path):
    script = "fprobe f entry\nregister_fprobe f scn_add\nunregister_fprobe f\nregister_fprobe f scn_nosuch\n"
    done = _replay(_file(tmp_path, "again.scn", script + "fprobe_is_registered f\nunregister_fprobe f\n"))
    assert done.stdout.splitlines()[-5:-1] == ["> fprobe_is_registered f", "= 0", "> unregister_fprobe f", "= -EINVAL"]


# -- the comparison ---------------------------------------------------------------------------------------------


def test_words_that_nobody_stored_are_not_compared():
    entry = "  f.entry ip=a data=[0,5]"
    assert not differences([Line(entry, frozenset({0}))], ["  f.entry ip=a data=[99,5]"])
    assert differences([Line(entry, frozenset({0}))], ["  f.entry ip=a data=[99,6]"])
    assert differences([Line(entry, frozenset({0}))], ["  f.entry ip=b data=[99,5]"])


def test_entries_without_a_node_are_dropped_from_ours_only():
    ours = [Line("> call scn_add"), Line("  f.entry ip=a data=NULL", extra=True), Line("= 3")]
    assert not differences(ours, ["> call scn_add", "= 3"])
    assert differences(ours, ["> call scn_add", "  f.entry ip=a data=NULL", "= 3"])


def test_what_a_refused_negated_filter_would_have_seen_is_not_compared():
    ours = [
        "> register_fprobe a !x",
        "= -EINVAL",
        "> call x 1",
        "  b.entry",
        "= 3",
        "> nmissed a",
        "= 0",
        "> hits b",
        "= 1 0",
    ]
    kernel = [
        "> register_fprobe a !x",
        "= 0",
        "> call x 1",
        "  a.entry",
        "    - call y 1",
        "      b.entry",
        "    = 4",
        "  b.entry",
    ]
    kernel += ["= 3", "> nmissed a", "= 7", "> hits b", "= 1 0"]
    assert not differences([Line(text) for text in ours], kernel)
    assert differences([Line(text) for text in ours], [*kernel[:-1], "= 2 0"])
    assert differences([Line(text) for text in ours], ["> register_fprobe a !x", "= -EINVAL", *kernel[2:]])


# -- the language -----------------------------------------------------------------------------------------------


def test_blocks_nest_and_rules_select():
    script = parse("on f.entry <=2 return 1\ncall scn_midway 1 {\n call scn_midway 2 {\n list\n }\n}\nlist\n")
    outer, last = script.steps
    assert str(last) == "list"
    assert str(outer) == "call scn_midway 1"
    assert str(outer.block[0].block[0]) == "list"
    assert [script.rules[0].selects(number) for number in (1, 2, 3)] == [True, True, False]
    assert script.expected is None


@pytest.mark.parametrize("text", ["}", "call scn_midway 1 {", "on f.entry 1", "on f.entry =1 return 0", "fprobe"])
def test_what_is_not_in_the_language_is_refused(text):
    with pytest.raises(ScriptError, match=r"\}|block|on NAME|declares"):
        parse(text)
