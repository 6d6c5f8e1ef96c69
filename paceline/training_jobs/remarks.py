"""Remarks that a training command prints besides its result. Not for errors (`errors.py`)."""

from collections.abc import Callable
from pathlib import Path

from paceline.training.run.loop import Progress

Tell = Callable[[str], None]
"""Called with a line for the user."""


def no_remarks(line: str) -> None:
    """Drop the remark."""


def tell_finished(before: int, done: Progress, run: Path, tell: Tell) -> None:
    """Tell the user if the run was complete already: it had `before` updates at the start and has no more now."""
    if 0 < before == done.step:
        made = f"this run was finished before, after {before} updates, and nothing more was learnt"
        tell(f"{made}: give more --steps, or delete {run} to begin anew")
