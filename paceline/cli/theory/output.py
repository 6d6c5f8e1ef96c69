"""What the commands of `paceline theory` share: examples in help texts, tables, JSON, limits, usage errors."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.table import Table as RichTable

from paceline.cli.terminal.streams import output, show_table
from paceline.errors import InvalidParameter, PacelineError
from paceline.theory.json_values import finite
from paceline.theory.tables import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

MOST_REQUESTS = 1 << 17
"""Most requests of a batch that a command computes one by one, in half a minute."""
MOST_LEVELS = 1024
"""Longest draft of a table, which takes a quarter of a minute."""


def examples(*commands: str) -> str:
    """Help text that shows `commands`, one to a line."""
    return "\n\n".join(["Examples:", *(f"paceline theory {command}" for command in commands)])


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn Paceline's own errors into usage errors: one line, exit code 2."""
    try:
        yield
    except PacelineError as error:
        raise typer.BadParameter(str(error)) from error


def check_most(field: str, value: int, most: int) -> None:
    """Raise InvalidParameter for a `value` above `most`, with which a command would compute for hours."""
    if value > most:
        raise InvalidParameter(field, f"{value} is more than {most}", f"give {most} or less")


def print_json(value: Any) -> None:
    """`value` as JSON on standard output. JSON has no infinity: null stands for it."""
    typer.echo(json.dumps(finite(value)))


def print_table(table: Table) -> None:
    """One rich table on standard output."""
    cells = [[_cell(*pair) for pair in zip(table.columns, row, strict=True)] for row in table.rows]
    shown = RichTable(title=table.title, title_justify="left")
    for name in table.columns:
        shown.add_column(name, justify="right")
    for row in cells:
        shown.add_row(*row)
    show_table(shown, output)


def _cell(column: str, value: float) -> str:
    """Inputs as they were given, counts bare, results to three digits after the decimal point."""
    if column in ("alpha", "cost ratio") or isinstance(value, int):
        return f"{value:g}"
    return f"{value:.3f}"
