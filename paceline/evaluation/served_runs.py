"""Runs that learn from a ring of served texts: what was served since makes other text, and so another run.

Not for the ring (`training/online/ring.py`).
"""

import shutil
from pathlib import Path

from paceline.evaluation.training_remarks import Tell
from paceline.training.heads.shards import TapStore


def run_on_ring(runs: Path, name: str, ring: TapStore, tell: Tell) -> Path:
    """The checkpoint's folder for what a ring holds now; nobody comes back to those for what it held before.

    Args:
        name: of what goes on learning.
    """
    run = runs / f"{name}-served-{ring.digest()[:12]}"
    before = [path for path in runs.glob(f"{name}-served-*") if path != run]
    for path in before:
        shutil.rmtree(path, ignore_errors=True)
    if before:
        texts = f"all its {len(ring.documents)} texts"
        tell(f"{ring.folder} has changed since the last run: this one begins anew, with {texts}")
    return run
