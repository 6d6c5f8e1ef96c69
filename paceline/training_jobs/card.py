"""Entries about the training run on a network's card."""

import platform
from pathlib import Path
from typing import Any

import torch

from paceline import __version__
from paceline.training.run.loop import Progress

_SHOWN = ("step", "greedy", "eal", "replayed", "sampled", "sampled_eal", "num_places")


def name_of(model: str) -> str:
    """The name of a model on cards: of a path, the last part only."""
    return Path(model).name if Path(model).exists() else model


def run_card(done: Progress) -> dict[str, Any]:
    """The card's entry on a training run."""
    return {
        "updates": done.step,
        "rows_seen": done.tokens,
        "minutes": round(done.seconds / 60, 1),
        "peak_megabytes": round(done.peak_bytes / 1e6),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "paceline": __version__,
    }


def shown(evaluation: dict[str, Any]) -> dict[str, Any]:
    """The card's entry on one evaluation of a run's curve."""
    return {name: evaluation[name] for name in _SHOWN if name in evaluation}
