"""The mutants of the hit path fit the code as it is; trying them takes long (`make mutants`)."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
from sampled import in_stress

from tests.mutants.changes import MUTANTS
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.trial import Copy, Verdict

_NAME = re.compile(r"\$(\w+)")


def test_each_mutants_old_text_occurs_exactly_once_and_differs_from_the_new():
    for mutant in MUTANTS:
        text = (ROOT / mutant.file).read_text()
        assert mutant.changed(text) != text, mutant.name


@pytest.mark.stress
def test_what_is_to_be_changed_into_is_python():
    for mutant in MUTANTS:
        ast.parse(mutant.changed((ROOT / mutant.file).read_text()), mutant.name)


def _end_of_last_line(text: str) -> str:
    return "".join(text.rpartition("\n")[2].split()[-1:])


def test_what_trampolines_are_changed_into_assembles():
    """The runtime would not start, and any test would notice that: no line ends up without its start, each name has a value."""
    files = {mutant.file for mutant in MUTANTS if mutant.file.endswith("trampolines.py")}
    named = set(_NAME.findall("".join((ROOT / file).read_text() for file in files)))
    for mutant in MUTANTS:
        if mutant.file in files:
            _, _, behind = (ROOT / mutant.file).read_text().partition(mutant.old)
            is_whole = behind[0] in '\n,"'  # of the text, or of the part of it that is a string of Python
            assert is_whole or _end_of_last_line(mutant.old) == _end_of_last_line(mutant.new), mutant.name
            assert set(_NAME.findall(mutant.new)) <= named, mutant.name


def test_names_are_given_once():
    names = [mutant.name for mutant in MUTANTS]
    assert sorted(set(names)) == sorted(names)


@functools.cache
def _functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_the_tests_that_should_notice_exist():
    for mutant in MUTANTS:
        assert mutant.tests, mutant.name
        for test in mutant.tests:
            file, _, name = test.partition("[")[0].partition("::")
            assert (ROOT / file).is_file(), test
            assert not name or name in _functions(ROOT / file), test


def test_a_text_that_has_changed_meanwhile_is_named():
    with pytest.raises(ValueError, match=r"mutant gone: 'x' occurs 2 times in some\.py, not once"):
        Mutant("gone", "some.py", "x", "y", ("tests",)).changed("x + x")


TREE = {
    "answer.py": "def answer():\n    return 40 + 2\n\n\ndef unused():\n    return 1\n",
    "test_answer.py": "from answer import answer\n\n\ndef test_answer():\n    assert answer() == 42\n",
}


@pytest.fixture
def copy(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    for name, text in TREE.items():
        (root / name).write_text(text)
    return Copy(root, tmp_path)


@pytest.mark.stress
@pytest.mark.parametrize(
    ("old", "new", "test", "verdict"),
    [
        ("40 + 2", "40 - 2", "test_answer.py", Verdict.NOTICED),
        in_stress(("return 1", "return 2", "test_answer.py", Verdict.NOT_NOTICED)),
        in_stress(("40 + 2", "40 - 2", "test_answer.py::test_nothing", Verdict.NO_TEST)),
    ],
)
def test_a_trial_says_whether_a_test_notices_and_puts_the_file_back(copy, old, new, test, verdict):
    assert copy.try_out(Mutant("one", "answer.py", old, new, (test,))) is verdict
    assert (copy.where / "answer.py").read_text() == TREE["answer.py"]
