"""The picture of the packages in docs/architecture.md: each folder, how high it is, and the folders that it may use.

`python -m tests.rooms` writes it; a test fails when it is out of date.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
BLOCK = re.compile(r"(?<=<!-- rooms -->\n)```text\n.*?^```$", re.DOTALL | re.MULTILINE)


def picture(packages: tuple[str, ...], folders_of: Callable[[str], dict[str, set[str]]]) -> str:
    """The block of text. `folders_of`: the folders of a package, and what each imports."""
    return "\n".join(["```text", *(line for each in packages for line in _package(each, folders_of(each))), "```"])


def _package(package: str, folders: dict[str, set[str]]) -> Iterator[str]:
    uses = {folder: found & folders.keys() for folder, found in folders.items()}
    heights: dict[str, int] = {}

    def height(folder: str) -> int:
        if folder not in heights:
            heights[folder] = 1 + max(map(height, uses[folder]), default=-1)
        return heights[folder]

    yield package
    for folder in sorted(uses, key=lambda each: (-height(each), each)):
        below = " ".join(sorted(used.removeprefix(f"{package}.") for used in uses[folder]))
        yield f"  {heights[folder]:>2}  {folder.removeprefix(f'{package}.'):<24}{below}".rstrip()


if __name__ == "__main__":
    from tests.test_imports import ORDER, _folders

    PAGE.write_text(BLOCK.sub(lambda _: picture(ORDER, _folders), PAGE.read_text()))
    print(f"wrote {PAGE}")
