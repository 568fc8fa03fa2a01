"""Writes the sources of the site: docs/, the README as its first page, and a page of the public names for autodoc to describe.

python website/pages.py DIRECTORY
"""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PUBLIC = {
    "fprobe": (),
    "fprobe.tracefs": ("mount", "tracefs"),
    "kprobes": (),
    "sandbox": (),
    "ftrace": (
        "ftrace_ops",
        "register_ftrace_function",
        "unregister_ftrace_function",
        "ftrace_set_filter",
        "ftrace_set_notrace",
        "ftrace_set_filter_ip",
        "ftrace_ops_set_global_filter",
        "register_ftrace_direct",
        "unregister_ftrace_direct",
        "Buffer",
    ),
}
"""Of each module the names that are shown: all that a package exports where none are given."""
_LINK = re.compile(r"\[([^\]\n]+)\]\((?!https?:|#)([^)\s]+\.\w+(?:#[^)\s]*)?)\)")


def write(directory: Path) -> None:
    """Write all pages. The directory is made anew."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(ROOT / "docs", directory)
    toc = "\n".join(sorted(path.stem for path in directory.glob("*.md")))
    readme = (ROOT / "README.md").read_text("utf-8").replace("(docs/", "(")
    (directory / "index.md").write_text(f"{readme}\n```{{toctree}}\n:hidden:\n\napi\n{toc}\n```\n", "utf-8")
    (directory / "api.md").write_text("# API\n\n" + "\n".join(map(_module, PUBLIC)), "utf-8")
    for page in directory.glob("*.md"):
        page.write_text(_LINK.sub(lambda link: _linked(link, directory), page.read_text("utf-8")), "utf-8")


def _linked(link: re.Match[str], directory: Path) -> str:
    """The link if it leads to a page, else its text: the sources are not on the site."""
    return link[0] if (directory / link[2].partition("#")[0]).exists() else link[1]


def _module(name: str) -> str:
    module = importlib.import_module(name)
    shown = [_described(name, public, getattr(module, public)) for public in PUBLIC[name] or module.__all__]
    return f"## {name}\n\n{inspect.getdoc(module) or ''}\n\n" + "\n".join(shown)


def _described(module: str, name: str, value: Any) -> str:
    """A directive of autodoc, in reStructuredText as docstrings are."""
    if isinstance(value, int):
        return f"- `{module}.{name} = {value}`\n"
    kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
    members = "   :members:\n   :inherited-members: object, NamedTuple, Enum\n" if kind == "class" else ""
    return f"```{{eval-rst}}\n.. auto{kind}:: {module}.{name}\n{members}```\n"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
