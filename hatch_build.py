"""Builds the manual pages of a wheel: `man fprobe`, and `man fprobe-VERB` for each verb, from the texts of --help."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent


class ManualPages(BuildHookInterface):  # type: ignore[misc]
    """Writes them into build/man, from where they are installed into share/man/man1."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds."""
        folder = ROOT / "build" / "man"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in pages(self.metadata.version).items():
            (folder / name).write_text(text, "utf-8")
            build_data["shared_data"][str(folder / name)] = f"share/man/man1/{name}"


def pages(version: str) -> dict[str, str]:
    """File name -> text of each page."""
    sys.path.insert(0, str(ROOT))
    try:
        import click

        from fprobe.cli.verbs import verbs
    finally:
        sys.path.remove(str(ROOT))
    top = click.Context(verbs, info_name="fprobe")
    names = verbs.list_commands(top)
    found = {"fprobe.1": _page(verbs, top, version, [f"fprobe-{name}" for name in names])}
    for name in names:
        command = verbs.get_command(top, name)
        assert command is not None
        with click.Context(command, info_name=name, parent=top) as context:
            found[f"fprobe-{name}.1"] = _page(command, context, version, ["fprobe"])
    return found


def _page(command: Any, context: Any, version: str, others: list[str]) -> str:
    """A page in the macros of man(7). `others`: the pages that it refers to."""
    name = context.command_path.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    records = [each.get_help_record(context) for each in command.get_params(context)]
    options = [record for record in records if record and record[0].startswith("-")]
    names = command.list_commands(context) if hasattr(command, "list_commands") else []
    verbs = [(each, command.get_command(context, each).short_help) for each in names]
    lines = [
        f'.TH {name.upper()} 1 "" "fprobe {version}"',
        ".SH NAME",
        f"{_text(name)} \\- {_text((command.short_help or command.help.splitlines()[0]).rstrip('.'))}",
        *(".SH SYNOPSIS", f".B {_text(context.command_path)}", _text(usage)),
        *(".SH DESCRIPTION", *_paragraphs(command.help)),
        *([".SH COMMANDS", *_listed(verbs)] if verbs else []),
        *(".SH OPTIONS", *_listed(options)),
        *_epilog(command.epilog or ""),
        *(".SH SEE ALSO", ", ".join(f"{_text(each)}(1)" for each in others)),
    ]
    return "\n".join(lines) + "\n"


def _listed(records: list[tuple[str, str]]) -> Iterator[str]:
    for term, text in records:
        yield from (".TP", f".B {_text(term)}", _text(text))


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield from (".PP", _text(" ".join(paragraph.split())))


def _epilog(text: str) -> Iterator[str]:
    """The examples, their lines as they are, and what follows them."""
    examples, _, rest = text.removeprefix("\b\n").partition("\n\n")
    if examples.startswith("Examples:"):
        yield from (".SH EXAMPLES", ".nf", *(_text(line.strip()) for line in examples.splitlines()[1:]), ".fi")
    else:
        rest = text
    if rest.strip():
        yield from _paragraphs(rest)


def _text(text: str) -> str:
    """The text with what roff would take for its own escaped."""
    return re.sub(r"^(?=[.'])", r"\\&", text.replace("\\", "\\e").replace("-", "\\-"), flags=re.MULTILINE)
