"""Representations of objects for shells and notebooks: rows of names and values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Row = Sequence[Any]


def table(rows: Iterable[Row], caption: str = "") -> str:
    """Rows as an HTML table; the first cell of each is its heading."""
    title = f"<caption>{_escaped(caption)}</caption>" if caption else ""
    return f"<table>{title}{''.join(_row(row) for row in rows)}</table>"


def _escaped(text: str) -> str:
    import html

    return html.escape(text)


def _row(row: Row) -> str:
    first, *rest = (_escaped(f"{cell:,}" if isinstance(cell, int) else str(cell)) for cell in row)
    return f"<tr><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>"


def handler_name(handler: Any) -> str:
    """What a handler is called; '' for none."""
    if handler is None:
        return ""
    return str(getattr(handler, "__qualname__", None) or getattr(handler, "name", None) or repr(handler))
