"""Speculation-length policies, one file each, and their construction by name.

To add one, add a file and a line in `_POLICIES`. Not for fitting drafts into a step (`scheduling/step.py`).
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import InvalidParameter
from paceline.option_types import check_types
from paceline.speculation.policies.base import Around, DraftLaw, LengthPolicy
from paceline.speculation.policies.by_node import GoodputByNode
from paceline.speculation.policies.cascade import Cascade
from paceline.speculation.policies.confidence import Confidence
from paceline.speculation.policies.disco import Classifier, Disco
from paceline.speculation.policies.fixed import Fixed
from paceline.speculation.policies.goodput import Goodput
from paceline.speculation.policies.heuristic import Heuristic
from paceline.speculation.policies.where_faster import WhereFaster
from paceline.speculation.prices import Prices
from paceline.speculation.traits import DrafterTraits

__all__ = [
    "Around",
    "Cascade",
    "Classifier",
    "Confidence",
    "Disco",
    "DraftLaw",
    "Fixed",
    "Goodput",
    "GoodputByNode",
    "Heuristic",
    "LengthPolicy",
    "WhereFaster",
    "make_policy",
]

_START = 5
"""Default first length of the heuristic, as in assisted generation."""


def make_policy(
    name: str, options: Mapping[str, Any], num_draft_tokens: int, traits: DrafterTraits, prices: Prices
) -> LengthPolicy:
    """The policy called `name`; ``auto`` is ``goodput``.

    Args:
        options: the policy's own, e.g. ``{"threshold": 0.5}``.
        num_draft_tokens: longest draft; with 0 every policy is `Fixed(0)`.
        traits: of the drafter.
        prices: for goodput.

    Raises:
        InvalidParameter: an unknown or missing option, or an invalid value.
    """
    if num_draft_tokens == 0:
        return Fixed(0)
    given = {"num_draft_tokens": num_draft_tokens, "prices": prices, "whole": traits.whole}
    policy = _POLICIES["goodput" if name == "auto" else name]
    if policy is Goodput and (traits.estimates or traits.chooses):
        policy = GoodputByNode
    parameters = inspect.signature(policy).parameters
    known = [parameter for parameter in parameters if parameter not in given]
    for option in options:
        if option not in known:
            problem = f"policy {name!r} has no option {option!r}"
            raise InvalidParameter("policy_options", problem, f"its options are: {', '.join(known) or 'none'}")
    check_types(policy, options)
    own = dict(options)
    if policy is Heuristic:
        own.setdefault("start", min(_START, num_draft_tokens))
    if policy is Disco:
        own["classifier"] = _classifier(options)
    return policy(**{parameter: given[parameter] for parameter in parameters if parameter in given}, **own)


def _classifier(options: Mapping[str, Any]) -> Classifier:
    """The classifier, read from the file that the option names."""
    if "classifier" not in options:
        raise InvalidParameter("policy_options", "disco needs a classifier", "train one with `paceline train disco`")
    return Classifier.read(Path(options["classifier"]).expanduser())


_POLICIES: dict[str, Callable[..., LengthPolicy]] = {
    "fixed": Fixed,
    "heuristic": Heuristic,
    "confidence": Confidence,
    "disco": Disco,
    "goodput": Goodput,
    "cascade": Cascade,
}
