"""How far to draft: acceptance records, prices (costs in seconds), the optimiser and the papers' length policies.

No tensor library, no clock and no access to tokens just drawn: engine and simulator share this code.
"""

from paceline.speculation.best_draft import Choice, Offers, best_draft
from paceline.speculation.cost import CostProfile
from paceline.speculation.outcome import RequestOutcome, StepOutcome, StepSeconds
from paceline.speculation.policies import Fixed, Goodput, GoodputByNode, Heuristic, LengthPolicy, make_policy
from paceline.speculation.prices import FixedPrices, LearnedPrices, Prices
from paceline.speculation.records import BatchStats, DraftRates, DraftStats, PrefixStats
from paceline.speculation.traits import DEFAULT_NUM_DRAFT_TOKENS, DrafterTraits

__all__ = [
    "DEFAULT_NUM_DRAFT_TOKENS",
    "BatchStats",
    "Choice",
    "CostProfile",
    "DraftRates",
    "DraftStats",
    "DrafterTraits",
    "Fixed",
    "FixedPrices",
    "Goodput",
    "GoodputByNode",
    "Heuristic",
    "LearnedPrices",
    "LengthPolicy",
    "Offers",
    "PrefixStats",
    "Prices",
    "RequestOutcome",
    "StepOutcome",
    "StepSeconds",
    "best_draft",
    "make_policy",
]
