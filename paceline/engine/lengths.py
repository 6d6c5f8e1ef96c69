"""Length policies by name, with their options, tied to what passes cost."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.config import LengthPolicyName
from paceline.engine.live_cost import LearnedCost
from paceline.errors import InvalidParameter
from paceline.scheduling.length import Cascade, Classifier, Confidence, Disco, Fixed, Goodput, Heuristic, LengthPolicy

_START = 5
"""Where the heuristic begins, as in assisted generation."""


def make_length(
    name: LengthPolicyName,
    options: Mapping[str, Any],
    cost: LearnedCost,
    most: int,
    whole: bool = False,
    is_priced: bool = True,
) -> LengthPolicy:
    """The policy called `name`; ``auto`` is ``goodput``.

    Args:
        options: the policy's own, e.g. ``{"threshold": 0.5}``.
        cost: what goodput reads.
        most: longest draft; 0 makes every policy a fixed one.
        whole: goodput takes or leaves drafts, and does not shorten them.
        is_priced: goodput counts the seconds of drafting; else those of rows alone.

    Raises:
        InvalidParameter: an option the policy does not have or lacks, or a value it refuses.
    """
    if most == 0:
        return Fixed(0)
    drafting = cost.whole_draft_seconds if whole else cost.draft_seconds
    priced = {"max_length": most, "pass_seconds": cost, "whole": whole}
    if is_priced:
        priced["draft_seconds"] = drafting
    policy, given = {
        "fixed": (Fixed, {"num_draft_tokens": most}),
        "heuristic": (Heuristic, {"most": most}),
        "confidence": (Confidence, {"max_length": most}),
        "disco": (Disco, {"max_length": most}),
        "goodput": (Goodput, priced),
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
