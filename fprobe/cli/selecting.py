"""The options that group calls and count some of them only: --by, --where, --of, --sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fprobe.cli.failure import Failure

if TYPE_CHECKING:
    from fprobe.run.values import Values

_BY = {"function": 0, "caller": 1, "thread": 2}
"""The choices of --by besides arg(NAME), which group calls; numbers as in `ftrace.hit.account`."""
_BY_VALUE = 3


class _By(click.ParamType[str] if TYPE_CHECKING else click.ParamType):  # type: ignore[misc]
    """One of `_BY`, or arg(NAME)."""

    name = "by"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same text. Raises click.BadParameter."""
        from fprobe.report.tables import argument_of

        if value not in _BY and argument_of(value) is None:
            self.fail(f"{value!r} is not one of {', '.join(_BY)}, or arg(NAME).", param, ctx)
        return value


by_option = click.option(
    "--by",
    type=_By(),
    metavar="[function|caller|thread|arg(NAME)]",
    default="function",
    show_default=True,
    help="Group calls.",
)
where_option = click.option("--where", metavar="FILTER", default="", help="Count only calls that pass: 'size > 4096'.")


def by_number(by: str) -> int:
    """The number of a choice of --by, as in `ftrace.hit.account`."""
    return _BY.get(by, _BY_VALUE)


def question_of(by: str, where: str) -> Values | None:
    """What is asked of the values of calls; None if nothing is. Raises Failure."""
    from fprobe.report.tables import argument_of
    from fprobe.run.values import Values

    if not where and argument_of(by) is None:
        return None
    try:
        return Values(by=by, where=where).checked()
    except ValueError as error:
        raise Failure(f"--by {by}: {error}") from None


def values_of(
    of: str, by: str, where: str, sum_: str, hists: tuple[str, ...], stacks: tuple[str, ...]
) -> Values | None:
    """What is asked of the values of the calls of --hist; None if nothing is. Raises Failure."""
    from fprobe.report.tables import argument_of
    from fprobe.run.values import Values

    asked = {"--of": of, "--sum": sum_}
    options = " and ".join(name for name, value in asked.items() if value)
    if of and not hists:
        raise Failure("--of: for the calls of --hist; give --hist PATTERN, too")
    if sum_ and not hists and not stacks:
        raise Failure("--sum: for the calls of --hist and --stacks; give one of them, too")
    if not (hists and (options or where or argument_of(by) is not None)):
        return None
    try:
        return Values(of, by, where, sum_).checked()
    except ValueError as error:
        raise Failure(f"{options or f'--by {by}'}: {error}") from None


def stack_values_of(where: str, sum_: str, stacks: tuple[str, ...]) -> Values | None:
    """What is asked of the values of the calls of --stacks; None if nothing is. Raises Failure."""
    from fprobe.run.values import Values

    if not stacks or not (where or sum_):
        return None
    try:
        return Values(where=where, sum=sum_).checked()
    except ValueError as error:
        raise Failure(f"--sum: {error}") from None


def asked_of(patterns: tuple[str, ...], question: Values | None) -> dict[str, Any]:
    """The fields of `Settings` that count the calls of patterns: all, or those that answer the question."""
    if question is None:
        return {"patterns": patterns}
    return {"selected": patterns, "question": question.question}


def check_where(where: str, tables: tuple[str, ...], traces: tuple[str, ...]) -> None:
    """Raise Failure if there is nothing of which --where could count only some calls, or something of which it cannot."""
    if where and not tables:
        raise Failure("--where is for the calls of --stat, --hist and --stacks; give one of them")
    if traces and tables:
        raise Failure(
            "--where and --by arg(NAME) are for the calls of --stat, not of --trace: leave out --trace, or give two runs"
        )
