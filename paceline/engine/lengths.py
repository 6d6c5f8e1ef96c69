"""Length policies by name, with their options, tied to what passes cost."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config import LengthPolicyName
from paceline.drafters.base import Drafter
from paceline.drafters.registry import SELF_LIMITING
from paceline.engine.live_cost import LearnedCost
from paceline.errors import InvalidParameter
from paceline.scheduling.length import (
    Cascade,
    Classifier,
    Confidence,
    Disco,
    Fixed,
    Goodput,
    Heuristic,
    LengthPolicy,
    Steady,
)

_START = 5
"""Where the heuristic begins, as in assisted generation."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """What a drafter's drafts cost.

    Attributes:
        token: a drafted token, in target passes over one row, as `make_priced` says.
        whole: drafts are taken or left; shortening them only loses.
        is_own: the drafter weighs its prices itself; those of rows are left to the policy.
        branches: drafts may be trees, whose price does not go by the token.
    """

    token: float = 0.0
    whole: bool = False
    is_own: bool = False
    branches: bool = False

    @classmethod
    def of(cls, drafter: Drafter, method: str, token: float) -> "Pricing":
        """Of the drafter called `method`, a token of which costs so much."""
        branches = getattr(drafter, "branches", False)
        return cls(token, method in SELF_LIMITING or branches, getattr(drafter, "prices_itself", False), branches)

    @property
    def is_constant(self) -> bool:
        """Whether the price of a token tells what drafts cost.

        Not of a model's trees, whose levels cost, and not of drafts with all of the target's weights, which pay where
        contexts are long.
        """
        is_lookup = self.token == 0
        return not self.is_own and (is_lookup or (self.token < 1 and not self.branches))


def make_length(
    name: LengthPolicyName,
    options: Mapping[str, Any],
    cost: LearnedCost,
    most: int,
    pricing: Pricing = Pricing(),
) -> LengthPolicy:
    """The policy called `name`; ``auto`` is ``goodput``.

    Args:
        options: the policy's own, e.g. ``{"threshold": 0.5}``.
        cost: what goodput reads.
        most: longest draft; 0 makes every policy a fixed one.
        pricing: what drafts cost.

    Raises:
        InvalidParameter: an option the policy does not have or lacks, or a value it refuses.
    """
    if most == 0:
        return Fixed(0)
    priced = {"max_length": most, "pass_seconds": cost, "whole": pricing.whole}
    if not pricing.is_own:
        priced["draft_seconds"] = cost.whole_draft_seconds if pricing.whole else cost.draft_seconds
    policy, given = {
        "fixed": (Fixed, {"num_draft_tokens": most}),
        "heuristic": (Heuristic, {"most": most}),
        "confidence": (Confidence, {"max_length": most}),
        "disco": (Disco, {"max_length": most}),
        "goodput": (Goodput, priced),
        "steady": (Steady, {"max_length": most, "draft_cost": pricing.token, "whole": pricing.whole}),
        "cascade": (Cascade, {"max_length": most}),
    }["goodput" if name == "auto" else name]
    parameters = inspect.signature(policy).parameters
    known = [parameter for parameter in parameters if parameter not in given]
    for option in options:
        if option not in known:
            problem = f"policy {name!r} has no option {option!r}"
            raise InvalidParameter("policy_options", problem, f"its options are: {', '.join(known) or 'none'}")
    own = {"start": min(_START, most), **options} if policy is Heuristic else dict(options)
    if policy is Disco:
        own["classifier"] = _classifier(options)
    return policy(**given, **own)


def _classifier(options: Mapping[str, Any]) -> Classifier:
    """The file that the option names, read."""
    if "classifier" not in options:
        raise InvalidParameter("policy_options", "disco needs a classifier", "train one with `paceline train disco`")
    return Classifier.read(Path(options["classifier"]).expanduser())
