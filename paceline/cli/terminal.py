"""The two streams of the command line: what is printed there is text, never markup, and tables keep their numbers.

Standard output is for answers, JSON, and tables that were asked for; standard error for progress, remarks and tables
beside an answer. Model names, prompts, paths and errors come from elsewhere: `[/red]` in them is printed as it stands.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from paceline.types import NamedProgress

_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False}

output = Console(**_PLAIN)
messages = Console(stderr=True, **_PLAIN)

_SHORT = 14
"""Cells up to this width are numbers, durations and the like, and are kept on one line."""


def tell_warning(message: Warning | str, *about: Any, **more: Any) -> None:
    """Print a warning as one line on standard error, without the place in the code; for `warnings.showwarning`."""
    messages.print(Text.assemble(("warning:", "bold yellow"), " ", str(message)), soft_wrap=True)


def tell_waiting(text: str) -> None:
    """Print a dim line on what takes long, where somebody watches: standard error is a terminal."""
    if messages.is_terminal:
        messages.print(text, style="dim", soft_wrap=True)


def show_table(table: Table, console: Console = messages) -> None:
    """Print `table`; headers and long texts wrap between words, and no number is ever cut.

    A table whose numbers alone are wider than the terminal runs past its edge.
    """
    least = [_least_width(column) for column in table.columns]
    padding = 3 * len(least) + 1  # a line and two blanks to a column, and the last line
    needed = sum(least) + padding
    wanted = [_whole_width(column) - width for column, width in zip(table.columns, least, strict=True)]
    spare = max(0, console.width - needed)
    for left, number in enumerate(sorted(range(len(least)), key=lambda i: wanted[i]), -len(least)):
        more = min(wanted[number], spare // -left)  # an equal share, of which those that want little leave some
        table.columns[number].width = least[number] + more
        spare -= more
    wide = console if needed <= console.width else Console(file=console.file, width=needed, **_PLAIN)
    wide.print(table)


def _whole_width(column: Column) -> int:
    """Width of the longest line of a column, in terminal cells."""
    lines = [line for text in (*column._cells, column.header) for line in str(text).splitlines()]
    return max(map(cell_len, lines), default=0)


def _least_width(column: Column) -> int:
    """Smallest width of a column in terminal cells: of its short texts, and of the longest word of all others."""
    texts = [str(cell) for cell in column._cells]
    pieces = [text for text in texts if cell_len(text) <= _SHORT]
    pieces += [word for text in (*texts, str(column.header)) for word in text.split()]
    return max(map(cell_len, pieces), default=0)


class _Share(ProgressColumn):
    """The percentage done, if the total is known."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.percentage:>3.0f} %" if task.total else "")


class _Left(ProgressColumn):
    """The remaining time, estimated from the last half minute."""

    def render(self, task: Task) -> Text:
        left = task.time_remaining
        return Text("" if left is None or not task.total else f"about {timedelta(seconds=int(left))} left")


@contextmanager
def progress_bars() -> Iterator[NamedProgress]:
    """Bars on standard error that vanish at the end; call what it gives with (what, done, total).

    Work in one piece (a total of 1) shows a moving bar without a share, and a bar that is done goes.
    """
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), _Share(), TimeElapsedColumn(), _Left())
    with Progress(*columns, console=messages, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            known = total if total > 1 else None
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=known)
            bars.update(tasks[what], completed=done, total=known, visible=done < total)

        yield progress
