"""Checkpoints of a run: one file, replaced atomically, so that a run that is killed leaves a whole checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from paceline.disk import in_one_move, writing
from paceline.errors import CorruptWeights, InvalidParameter

_NAME, _LOCK = "checkpoint.pt", "checkpoint.lock"


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Within the context no other program can enter it with this folder: two runs would overwrite each other's states.

    Raises:
        InvalidParameter: another program has entered it, or the folder cannot be written.
    """
    with writing("work", folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            problem, remedy = f"{folder} is used by another run", "wait until it has ended, or name another folder"
            raise InvalidParameter("work", problem, remedy) from None
    try:
        yield
    finally:
        lock.release()


def write_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write `state` (tensors and plain values) to `folder`.

    Raises:
        InvalidParameter: it cannot be written; the previous checkpoint is unchanged.
    """
    with writing("work", folder), in_one_move(folder / _NAME) as file:
        torch.save(state, file)


def has_checkpoint(folder: Path) -> bool:
    """Whether `folder` has a checkpoint."""
    return (folder / _NAME).exists()


def read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The latest state of `write_checkpoint`; None where there is none.

    Raises:
        CorruptWeights: the file is damaged.
    """
    if not has_checkpoint(folder):
        return None
    path = folder / _NAME
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch's own message would mislead
        raise CorruptWeights(f"{path}: cannot be read (it is damaged); delete it to begin anew") from None
