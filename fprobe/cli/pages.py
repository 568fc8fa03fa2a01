"""The pages of docs/, for `fprobe help TOPIC`: a wheel has them in fprobe/docs, a source tree beside the packages."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def topics() -> dict[str, Path]:
    """Name -> file of each page; empty where the pages are not installed."""
    folder = _PACKAGE / "docs"
    if not folder.is_dir() and (_PACKAGE.parent / "pyproject.toml").is_file():
        folder = _PACKAGE.parent / "docs"
    return {path.stem: path for path in sorted(folder.glob("*.md"))}
