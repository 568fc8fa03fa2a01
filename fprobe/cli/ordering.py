"""Options for the rows of tables: their order, which are shown, and CPU time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fprobe.cli.failure import Failure

if TYPE_CHECKING:
    from fprobe.report.order import Order

_Command = TypeVar("_Command", bound=Callable[..., Any])
SORT_KEYS = ("total", "self", "average", "min", "p50", "p90", "p99", "max", "cpu", "hits", "name")
"""As in `fprobe.report.order`, which is imported only when a table is made."""


def table_options(command: _Command) -> _Command:
    """Adds --sort, --top, --min-hits and --cpu. The command gets `order` and `cpu`."""

    @click.option(
        "--sort", "-s", type=click.Choice(SORT_KEYS), default="total", show_default=True, help="Order of tables."
    )
    @click.option("--top", "most", metavar="N", type=click.IntRange(1), help="Only the first N rows of each table.")
    @click.option(
        "--min-hits", metavar="N", type=click.IntRange(0), default=0, help="Only functions with at least N hits."
    )
    @click.option("--cpu", is_flag=True, help="Also measure CPU time: two system calls more for each call.")
    @functools.wraps(command)
    def wrapped(*positional: Any, sort: str, most: int | None, min_hits: int, cpu: bool, **options: Any) -> Any:
        if sort == "cpu" and not cpu:
            raise Failure("--sort cpu orders by CPU time, which is not measured: give --cpu, too")
        from fprobe.report.order import Order

        return command(*positional, order=Order(sort, most, min_hits), cpu=cpu, **options)

    return wrapped  # type: ignore[return-value]  # it has the signature of what it wraps


def check_tables(order: Order, cpu: bool, tables: tuple[str, ...]) -> None:
    """Raise Failure if there are no tables for these options."""
    given = {
        "--sort": order.sort != "total",
        "--top": order.most is not None,
        "--min-hits": bool(order.min_hits),
        "--cpu": cpu,
    }
    if not tables and (options := " and ".join(name for name, is_given in given.items() if is_given)):
        raise Failure(f"{options}: for the tables of --stat and --hist, of which none is given")
