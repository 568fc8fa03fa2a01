"""The site of `make docs`, by Sphinx: docs/, the README as its first page, and the public names (pages.py)."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

project = "fprobe"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "fprobe"
default_role = "code"
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
_EXAMPLE = re.compile(r"(?m)(?<=\n\n)(?: {4}.*(?:\n|\Z)(?:\n(?= {4}))*)+")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _restructure)


def _restructure(_app: Sphinx, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    """Docstrings are plain text, with examples that are indented: make these code, and asterisks themselves."""
    text = "\n".join(lines)
    parts, end = list[str](), 0
    for example in _EXAMPLE.finditer(text):
        parts += [_plain(text[end : example.start()]), ".. code-block:: python\n\n", example[0], "\n"]
        end = example.end()
    lines[:] = "".join([*parts, _plain(text[end:])]).split("\n")


def _plain(text: str) -> str:
    """The text without what is emphasis or a link to reStructuredText."""
    return re.sub(r"\*|_(?=\W|\Z)", r"\\\g<0>", text)
