"""How many tokens to draft: speculation-length policies, one file each.

Not the place for fitting drafts into a step (`step.py`) or for what a pass costs (`cost.py`).
"""

from paceline.scheduling.length.base import DraftLaw, LengthPolicy, StepObserver, StepRecord
from paceline.scheduling.length.cascade import Cascade
from paceline.scheduling.length.confidence import Confidence
from paceline.scheduling.length.disco import Classifier, Disco
from paceline.scheduling.length.fixed import Fixed
from paceline.scheduling.length.goodput import Goodput
from paceline.scheduling.length.heuristic import Heuristic
from paceline.scheduling.length.steady import Steady

__all__ = [
    "Cascade",
    "Classifier",
    "Confidence",
    "Disco",
    "DraftLaw",
    "Fixed",
    "Goodput",
    "Heuristic",
    "LengthPolicy",
    "Steady",
    "StepObserver",
    "StepRecord",
]
