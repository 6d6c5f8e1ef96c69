"""What a training command says in a line beside its result. Not for what is refused (`errors.py`)."""

from collections.abc import Callable
from pathlib import Path

from paceline.training.run.loop import Progress

Tell = Callable[[str], None]
"""Is given a line for the user."""


def no_remarks(line: str) -> None:
    """For callers who show none."""


def tell_finished(before: int, done: Progress, run: Path, tell: Tell) -> None:
    """Say so where an earlier command made all updates; there were `before` of them when this one began."""
    if 0 < before == done.step:
        made = f"this run was finished before, after {before} updates, and nothing more was learnt"
        tell(f"{made}: give more --steps, or delete {run} to begin anew")
