"""The hooks by which lower floors call upper ones: what stands below each is what the code does."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest

from sandbox.process import hooks

ROOT = Path(__file__).parents[2]
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
    for package in ("sandbox", "ftrace", "kprobes", "fprobe")
    for path in (ROOT / package).rglob("*.py")
}
NAMES = [name for name, value in vars(hooks).items() if isinstance(value, hooks.Hook)]


def _said(name: str) -> tuple[set[str], set[str]]:
    """The modules that are said to call a hook, and to add to it."""
    body = ast.parse(SOURCES["sandbox.process.hooks"]).body
    for node, text in itertools.pairwise(body):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
            calling, adding = ast.literal_eval(ast.unparse(text)).split("Called by ")[1].split("; added to by ")
            return {calling}, set(re.findall(r"[\w.]+\w", adding))
    raise LookupError(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_modules_that_call_a_hook_and_add_to_it_are_named_below_it(name):
    calls = {module for module, source in SOURCES.items() if re.search(rf"hooks\.{name}(\(|[:\)])", source)}
    adds = {module for module, source in SOURCES.items() if f"hooks.{name}.add(" in source}
    assert (calls, adds) == _said(name)


def test_a_floor_calls_no_other_lists_of_functions():
    lists = re.compile(r"^\s*(?:self\.)?(\w+): list\[Callable\[.*\]\] = ", re.MULTILINE)
    found = {(module, name) for module, source in SOURCES.items() for name in lists.findall(source)}
    own = {
        ("kprobes.freed_text", "_killed"),
        ("ftrace.tracing.events.event_mutex", "due"),
    }  # their modules call their own
    assert {each for each in found if not each[0].startswith("sandbox.process.")} <= own


def test_a_function_is_called_once_and_not_after_its_removal():
    hook = hooks.Hook[[int]]()
    calls: list[int] = []
    hook.add(calls.append)
    hook.add(calls.append)
    hook(1)
    assert [call.__self__ for call in hook] == [calls]
    hook.remove(calls.append)
    hook.remove(calls.append)
    hook(3)
    assert calls == [1]
