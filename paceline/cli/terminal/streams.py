"""The two streams of the command line: what is printed there is text, never markup, and tables keep their numbers.

Standard output is for answers, JSON, and tables that were asked for; standard error for progress, remarks and tables
beside an answer. Model names, prompts, paths and errors come from elsewhere: `[/red]` in them is printed as it stands.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from threading import Event, Thread
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


@contextmanager
def warnings_later() -> Iterator[None]:
    """Keep warnings until the end, and show them then: they would break the line of an answer that streams."""
    kept: list[Callable[[], None]] = []
    show = warnings.showwarning
    warnings.showwarning = lambda *about, **more: kept.append(partial(show, *about, **more))
    try:
        yield
    finally:
        warnings.showwarning = show
        for warning in kept:
            warning()


def tell_waiting(text: str) -> None:
    """Print a dim line on what takes long, where somebody watches: standard error is a terminal."""
    if messages.is_terminal:
        messages.print(text, style="dim", soft_wrap=True)


def show_table(table: Table, console: Console = messages) -> None:
    """Print `table`; headers and long texts wrap between words, and no number is ever cut.

    A table whose numbers alone are wider than the terminal is printed in parts, each with the first column. In a file
    or a pipe it is one table, of any width.
    """
    for part in _parts(table, console.width) if console.is_terminal else [table]:
        _show_whole(part, console)


def _parts(table: Table, width: int) -> Iterator[Table]:
    """`table` in parts of at most `width` cells, if two of its columns are not wider; the first has the title."""
    first, *rest = table.columns
    groups = [[first]]
    for column in rest:
        if len(groups[-1]) > 1 and _needed([*groups[-1], column]) > width:
            groups.append([first])
        groups[-1].append(column)
    for number, columns in enumerate(groups):
        part = copy(table)
        part.title = None if number else table.title
        part.columns = [replace(column, _index=place) for place, column in enumerate(columns)]
        yield part


def _needed(columns: Sequence[Column]) -> int:
    """Smallest width of a table of these columns: a line and two blanks to each, and the last line."""
    return sum(map(_least_width, columns)) + 3 * len(columns) + 1


def _show_whole(table: Table, console: Console) -> None:
    least = [_least_width(column) for column in table.columns]
    needed = _needed(table.columns)
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

    Work in one piece (a total of 1) shows a moving bar without a share, and a bar that is done goes. Where standard
    error is no terminal, a plain line every half minute takes the place of the bars.
    """
    if not messages.is_terminal:
        with _progress_lines() as lines:
            yield lines
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), _Share(), TimeElapsedColumn(), _Left())
    with Progress(*columns, console=messages, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            known = total if total > 1 else None
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=known)
            bars.update(tasks[what], completed=done, total=known, visible=done < total)

        yield progress


def number_of(count: int, noun: str) -> str:
    """`count` and `noun`, which ends in an s where the count is not 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@contextmanager
def telling_end(kept: str) -> Iterator[None]:
    """After Ctrl-C, print in one line what is kept or lost: the interrupt's own message, else `kept`."""
    try:
        yield
    except KeyboardInterrupt as end:
        messages.print(str(end) or kept, soft_wrap=True)
        raise


@contextmanager
def _progress_lines(seconds: float = 30.0) -> Iterator[NamedProgress]:
    """As `progress_bars`, for a file or pipe: a line every so many `seconds`, also while nothing is reported."""
    lines, ended = ProgressLines(), Event()

    def tell() -> None:
        while not ended.wait(seconds):
            if line := lines.line():
                messages.print(line, soft_wrap=True)

    teller = Thread(target=tell, name="paceline-progress", daemon=True)
    teller.start()
    try:
        yield lines
    finally:
        ended.set()
        teller.join()


@dataclass(slots=True)
class _Work:
    """Work that was reported: when it began and with how much done, and how far it is."""

    began: float
    first: int
    done: int
    total: int


class ProgressLines:
    """What was reported last and is not done, as a line: "text written: 40 %, 1:30 passed, about 2:15 left"."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._work: dict[str, _Work] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        work = self._work.pop(what, None) or _Work(self._clock(), done, done, total)
        work.done, work.total = done, total
        if done < total:
            self._work[what] = work  # at the end: reported last

    def line(self) -> str | None:
        """The line; None where no work is unfinished."""
        if not self._work:
            return None
        what, work = next(reversed(list(self._work.items())))
        now = self._clock()
        share = f"{100 * work.done / work.total:.0f} %, " if work.total > 1 else ""
        gained = work.done - work.first
        left = (now - work.began) * (work.total - work.done) / gained if gained > 0 else None
        ending = "" if left is None else f", about {_minutes(left)} left"
        return f"{what}: {share}{_minutes(now - self._began)} passed{ending}"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class TitledBar:
    """A bar of `progress_bars` whose title changes, with the latest figure in it."""

    def __init__(self, progress: NamedProgress) -> None:
        self._progress, self._title = progress, ""

    def __call__(self, title: str, done: int, total: int) -> None:
        """Show (done, total) under `title`."""
        if self._title not in ("", title):
            self._progress(self._title, 1, 1)
        self._title = title
        self._progress(title, done, total)
