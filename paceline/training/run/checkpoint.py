"""Checkpoints of a run: one file, replaced atomically, so that a run that is killed leaves a whole checkpoint."""

from pathlib import Path
from typing import Any

import torch

from paceline.disk import in_one_move, writing
from paceline.errors import CorruptWeights

_NAME = "checkpoint.pt"


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
