"""Verification rules by name: resolve a configured name to a rule, and bind a rule to a request as a `Judge`.

Not the place for the rules themselves.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from paceline.errors import InvalidParameter
from paceline.option_types import check_types
from paceline.sampling.block import verify_block
from paceline.sampling.coupled import verify_coupled, verify_sample_and_match
from paceline.sampling.law import Law
from paceline.sampling.lossy import (
    LOSSY,
    verify_distance,
    verify_lenient,
    verify_lenient_greedy,
    verify_top_k,
    verify_typical,
    verify_uniform_coin,
)
from paceline.sampling.randomness import ROOT, CounterRandomness, Randomness, fresh_seed
from paceline.sampling.rejection import verify_rejection_sampling
from paceline.sampling.tree import TokenTree
from paceline.sampling.verify import TargetLaws, Verdict, verify

AUTO = "auto"
"""The default, which depends on whether the request has a seed: see `judge`."""


class Verifier(Protocol):
    """A rule with its options bound; see `verify` for the arguments."""

    def __call__(self, tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int, /) -> Verdict: ...


class _NoLaw(Exception):
    """The target's law after `node` could not be computed."""

    def __init__(self, node: int) -> None:
        super().__init__(node)
        self.node = node


def verify_as_far(
    rule: Verifier, tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int
) -> Verdict:
    """The verdict of `rule`; when the law after an accepted node raises an error, the path up to that node.

    That node is then the verdict's last token, as in plain decoding; the error is raised in the next step, at the root.
    Other arguments as in `verify`.

    Raises:
        Exception: what `target` raised at the root.
    """

    def asked(node: int) -> Law:
        try:
            return target(node)
        except Exception as error:
            raise _NoLaw(node) from error

    try:
        return rule(tree, asked, randomness, position)
    except _NoLaw as failed:
        if failed.node == ROOT:
            raise failed.__cause__ or failed from None
        is_last = failed.node == len(tree) - 1
        if getattr(rule, "func", rule) is verify_block and not is_last:  # it reads laws after nodes it may not accept
            return verify_as_far(rule, tree.prune(failed.node + 1), target, randomness, position)
        path = tree.path_to(failed.node)
        return Verdict(path[:-1], tree.tokens[failed.node], "bonus" if path[1:] else "target", 0)


def verify_auto(tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int) -> Verdict:
    """The default for a request without a seed.

    Deterministic (one-hot) drafts are verified by sample and match, which accepts a token x with probability p(x), as
    p/q would, and emits the text of plain sampling. Drawn drafts are verified by p/q. Arguments as in `verify`.
    """
    if tree.draw == "one_hot":
        return verify_sample_and_match(tree, target, randomness, position)
    return verify(tree, target, randomness, position)


RULES: dict[str, Callable[..., Verdict]] = {
    AUTO: verify_auto,
    "p/q": verify,
    "block": verify_block,
    "coupled": verify_coupled,
    "sample_and_match": verify_sample_and_match,
    "rejection_sampling": verify_rejection_sampling,
    "lenient": verify_lenient,
    "lenient_greedy": verify_lenient_greedy,
    "uniform_coin": verify_uniform_coin,
    "typical": verify_typical,
    "top_k": verify_top_k,
    "distance": verify_distance,
}
"""Every rule by its configuration name."""


_STRICTEST = {"k": 1, "distance": 0}
"""Options that are whole numbers, with their smallest values; all others are in (0, 1]."""

_TOSSES_COINS = frozenset({"p/q", "block", "rejection_sampling", "lenient", "uniform_coin"})
"""Rules with acceptance coins: their output depends on the drafts, even with a seed."""


@dataclass(frozen=True, slots=True)
class Judge:
    """A verification rule bound to one request.

    Attributes:
        verify: the rule.
        randomness: the request's coins and draws.
        coupled: whether a drafter must draw with the target's noise.
    """

    verify: Verifier
    randomness: Randomness
    coupled: bool

    @property
    def target_key(self) -> Callable[[int], int] | None:
        """Noise key of the target's draw at an absolute position, for drafters that draw with it; None for others."""
        noise = self.randomness
        if not self.coupled or not isinstance(noise, CounterRandomness):
            return None
        return noise.target_key

    def verdict(self, tree: TokenTree, target: TargetLaws, position: int) -> Verdict:
        """The verdict on a draft; see `verify_as_far`."""
        return verify_as_far(self.verify, tree, target, self.randomness, position)


def judge(name: str, verifier: Verifier, seed: int | None, number: int, prefers_coupled: bool = False) -> Judge:
    """The judge of a request under the rule called `name`, with its options bound in `verifier`.

    Under ``auto``, a request with a seed gets the coupled rule, so that its output is that of plain sampling whatever
    is drafted; one without a seed gets `verify_auto` with a fresh seed, or the coupled rule where that is preferred.

    Rules with acceptance coins use a noise stream of their own for every request, even for equal seeds. Otherwise a
    drafter or policy that remembers an earlier request of the same seed could propose tokens that were decided by the
    same coins which now verify them, and the output would not follow the target's law.

    Args:
        seed: of the request; None for a fresh one.
        number: of the request, at least 0, which no other one has, in this engine or another.
        prefers_coupled: the drafter is faster under the coupled rule.
    """
    if name == AUTO and (seed is not None or prefers_coupled):
        return Judge(verify_coupled, CounterRandomness(fresh_seed() if seed is None else seed), True)
    if seed is None:
        return Judge(verifier, CounterRandomness(fresh_seed()), name == "coupled")
    stream = 1 + number if name in _TOSSES_COINS else 0
    return Judge(verifier, CounterRandomness(seed, stream), name == "coupled")


def resolve(name: str, **options: float) -> Verifier:
    """The rule called `name` with its options bound, e.g. ``resolve("lenient", lenience=0.3)``.

    Raises:
        InvalidParameter: no such rule, no such option, or a value outside its range: (0, 1], or whole numbers from
            `_STRICTEST` on.
    """
    rule = _rule(name)
    known = option_names(name)
    for option in options:
        if option not in known:
            remedy = f"use {', '.join(known)}" if known else "leave it out"
            raise InvalidParameter(option, f"is no option of the rule {name!r}", remedy)
    check_types(rule, options)
    for option, value in options.items():
        if option in _STRICTEST and (value < _STRICTEST[option] or value != int(value)):
            strictest = _STRICTEST[option]
            raise InvalidParameter(option, f"{value!r} is no whole number from {strictest} on", f"{strictest} is exact")
        if option not in _STRICTEST and not 0 < value <= 1:
            raise InvalidParameter(option, f"{value!r} is not in (0, 1]", "1 is the strictest")
    return partial(rule, **options) if options else rule


def option_names(name: str) -> tuple[str, ...]:
    """Names of the options of the rule called `name`. Raises InvalidParameter for an unknown rule."""
    parameters = inspect.signature(_rule(name)).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)


def is_lossy(name: str) -> bool:
    """Whether the rule called `name` changes the output's law. Raises InvalidParameter for an unknown rule."""
    return _rule(name) in LOSSY


def _rule(name: str) -> Callable[..., Verdict]:
    if name not in RULES:
        raise InvalidParameter("rule", f"{name!r} is unknown", f"use one of {', '.join(RULES)}")
    return RULES[name]
