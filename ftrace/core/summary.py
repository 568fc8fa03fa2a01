"""Summaries of objects for shells and notebooks: rows of names and values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Row = Sequence[Any]


def table(rows: Iterable[Row], caption: str = "") -> str:
    """Rows as an HTML table; the first cell of each is its heading."""
    title = f"<caption>{_escaped(caption)}</caption>" if caption else ""
    return f"<table>{title}{''.join(_row(row) for row in rows)}</table>"


def line(kind: str, rows: Iterable[Row]) -> str:
    """Rows as one line of text: `<kprobe: at leaf, state stub>`."""
    shown = ", ".join(" ".join(map(_cell, row)) for row in rows)
    return f"<{kind}: {shown}>" if shown else f"<{kind}>"


def _cell(cell: Any) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _escaped(text: str) -> str:
    import html

    return html.escape(text)


def _row(row: Row) -> str:
    first, *rest = (_escaped(_cell(cell)) for cell in row)
    return f"<tr><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>"


class Summary:
    """Base of objects whose rows a shell shows on one line, and a notebook as a table."""

    def _summary_rows(self) -> list[Row]:
        """The rows; the first cell of each is its heading."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return line(type(self).__name__, self._summary_rows())

    def _repr_html_(self) -> str:
        return table(self._summary_rows(), type(self).__name__)


def shortened(target: Any) -> str:
    """The target of an attachment as Python writes it; of a long list, the beginning."""
    is_one = not isinstance(target, (list, tuple))
    items = [f"{item:#x}" if isinstance(item, int) else repr(item) for item in ([target] if is_one else target)]
    if is_one:
        return items[0]
    return f"[{', '.join(items if len(items) <= 4 else [*items[:3], f'{len(items) - 3:,} more'])}]"


def handler_name(handler: Any) -> str:
    """The name of a handler; '' for none."""
    if handler is None:
        return ""
    return str(getattr(handler, "__qualname__", None) or getattr(handler, "name", None) or repr(handler))
