"""Why a placement fares as it does: loads and queues, what was lost to what, what each choice buys, who slows whom.

Everything is simulated on the case's own arrivals with the controller's rules. Not the place for finding a better
placement (`search/`) or for showing the answer (`cli/terminal/explanations.py`).
"""

from paceline.placement.explain.ablations import ReplicaAblation, SplitAblation
from paceline.placement.explain.explanation import Explanation, explain
from paceline.placement.explain.interference import Interference
from paceline.placement.explain.loads import GroupLoad
from paceline.placement.explain.losses import ModelLoss

__all__ = ["Explanation", "GroupLoad", "Interference", "ModelLoss", "ReplicaAblation", "SplitAblation", "explain"]
