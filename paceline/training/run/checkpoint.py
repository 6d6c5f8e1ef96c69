"""Checkpoints of a run: one file, replaced as a whole, so that an end at any moment leaves the one before."""

from pathlib import Path
from typing import Any

import torch

from paceline.disk import in_one_move, writing
from paceline.errors import CorruptWeights

_NAME = "checkpoint.pt"


def write_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write `state` (tensors and plain values) to `folder`.

    Raises:
        InvalidParameter: it cannot be written; the checkpoint before is as it was.
    """
    with writing("work", folder), in_one_move(folder / _NAME) as file:
        torch.save(state, file)


def has_checkpoint(folder: Path) -> bool:
    """Whether a run has begun there."""
    return (folder / _NAME).exists()


def read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """What was written last; None where nothing was.

    Raises:
        CorruptWeights: the file is damaged.
    """
    if not has_checkpoint(folder):
        return None
    path = folder / _NAME
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # what torch says of it speaks of other things
        raise CorruptWeights(f"{path}: cannot be read (it is damaged); delete it to begin anew") from None
