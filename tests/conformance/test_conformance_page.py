"""docs/conformance.md is what the tests say, and every statement has an entry that is true."""

from __future__ import annotations

from tests.conformance import found
from tests.conformance.page import COMMAND, FILE, page, shown_tests
from tests.conformance.statements import ADAPTED, HOLDS, STATUSES, load, numbers, sort_key

FAMILIES, STATEMENTS = load()


def test_every_statement_has_an_entry_and_every_entry_is_a_statement():
    ids = [id for family in FAMILIES for id in family.ids]
    assert sorted(STATEMENTS, key=sort_key) == sorted(ids, key=sort_key)


def test_what_a_test_names_is_a_statement():
    tests, scenarios = found.by_statement()
    prefixes = {family.prefix for family in FAMILIES}
    named = {id for id in (*tests, *scenarios) if id[:2] in prefixes}
    assert named <= set(STATEMENTS), "no such statement"


def test_every_entry_is_complete():
    """What holds, as it is or adapted, has a test that exists; what does not hold as it is has a reason."""
    tests, scenarios = found.by_statement()
    every = found.every_test()
    for id, statement in STATEMENTS.items():
        assert statement.status in STATUSES and statement.words, id
        assert bool(statement.reason) == (statement.status != HOLDS), f"{id}: a reason is for what does not just hold"
        missing = [node for node in statement.tests if node not in every]
        assert not missing, f"{id}: no such test"
        if statement.status in (HOLDS, ADAPTED):
            assert statement.tests or tests.get(id) or scenarios.get(id), f"{id}: no test holds it"


def test_what_holds_has_a_test_in_make_test():
    tests, scenarios = found.by_statement()
    quick = {node for node, test in found.every_test().items() if not test.is_heavy}
    for id, statement in STATEMENTS.items():
        if statement.status in (HOLDS, ADAPTED):
            named = {*statement.tests, *tests.get(id, ())}
            assert quick & named or scenarios.get(id), f"{id}: all of its tests are in stress"


def test_the_page_is_up_to_date():
    assert FILE.read_text() == page(), f"run `{COMMAND}`"


# -- how tests are found ----------------------------------------------------------------------------------------


def test_ids_are_read_from_names_docstrings_and_ranges():
    source = '''
def test_fp10_ft9_something(): pass
def test_plain():
    """RH-3..5, UF-1 and not XFP-2"""
@pytest.mark.xfail(strict=True)
def test_fp11_not_yet(): pass
def helper_fp12(): pass
@pytest.mark.stress
def test_kp1_for_hours(): pass
'''
    assert list(found.tests_in(source)) == [
        ("test_fp10_ft9_something", {"FP-10", "FT-9"}, False),
        ("test_plain", {"RH-3", "RH-4", "RH-5", "UF-1"}, False),
        ("test_kp1_for_hours", {"KP-1"}, True),
    ]


def test_numbers_are_ranges_and_single_ones():
    assert numbers("1-3, 7") == (1, 2, 3, 7)


def test_tests_are_shown_by_file():
    shown = shown_tests(["tests/a/test_x.py::test_one", "tests/a/test_x.py::test_two"], ["kp"])
    assert shown == "[test_x](../tests/a/test_x.py): `one`, `two`; scenarios `kp`"
