"""Verification rules by name: what a configuration writes becomes a function here. Not the place for the rules."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Protocol

from paceline.errors import InvalidParameter
from paceline.sampling.block import verify_block
from paceline.sampling.coupled import verify_coupled, verify_sample_and_match
from paceline.sampling.lossy import LOSSY, verify_lenient, verify_lenient_greedy, verify_typical, verify_uniform_coin
from paceline.sampling.randomness import Randomness
from paceline.sampling.tree import TokenTree
from paceline.sampling.verify import TargetLaws, Verdict, verify


class Verifier(Protocol):
    """A rule with its options bound; see `verify` for the arguments."""

    def __call__(self, tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int, /) -> Verdict: ...


RULES: dict[str, Callable[..., Verdict]] = {
    "p/q": verify,
    "block": verify_block,
    "coupled": verify_coupled,
    "sample_and_match": verify_sample_and_match,
    "lenient": verify_lenient,
    "lenient_greedy": verify_lenient_greedy,
    "uniform_coin": verify_uniform_coin,
    "typical": verify_typical,
}
"""Every rule by the name a configuration uses."""


def resolve(name: str, **options: float) -> Verifier:
    """The rule called `name` with its options bound, e.g. ``resolve("lenient", lenience=0.3)``.

    Raises:
        InvalidParameter: no such rule, no such option, or an option outside (0, 1].
    """
    rule = _rule(name)
    known = option_names(name)
    for option, value in options.items():
        if option not in known:
            remedy = f"use {', '.join(known)}" if known else "leave it out"
            raise InvalidParameter(option, f"is no option of the rule {name!r}", remedy)
        if not 0 < value <= 1:
            raise InvalidParameter(option, f"{value!r} is not in (0, 1]", "1 is the strictest")
    return partial(rule, **options) if options else rule


def option_names(name: str) -> tuple[str, ...]:
    """Options that the rule called `name` takes. Raises InvalidParameter for an unknown rule."""
    parameters = inspect.signature(_rule(name)).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)


def is_lossy(name: str) -> bool:
    """True when the rule called `name` changes the law of the text. Raises InvalidParameter for an unknown rule."""
    return _rule(name) in LOSSY


def _rule(name: str) -> Callable[..., Verdict]:
    if name not in RULES:
        raise InvalidParameter("rule", f"{name!r} is unknown", f"use one of {', '.join(RULES)}")
    return RULES[name]
