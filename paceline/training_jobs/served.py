"""Training runs on a ring of served texts; a new run starts whenever the ring has changed.

Not for the ring (`training/online/ring.py`).
"""

import shutil
from pathlib import Path

from paceline.training.heads.shards import TapStore
from paceline.training_jobs.remarks import Tell


def run_on_ring(runs: Path, name: str, ring: TapStore, tell: Tell) -> Path:
    """The checkpoint folder for the ring's current texts; deletes those for its earlier texts, and says so by `tell`.

    Args:
        name: of the head or draft that is trained further.
    """
    run = runs / f"{name}-served-{ring.digest()[:12]}"
    before = [path for path in runs.glob(f"{name}-served-*") if path != run]
    for path in before:
        shutil.rmtree(path, ignore_errors=True)
    if before:
        texts = f"all its {len(ring.documents)} texts"
        tell(f"{ring.folder} has changed since the last run: this one begins anew, with {texts}")
    return run
