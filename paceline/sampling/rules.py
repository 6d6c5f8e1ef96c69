"""Verification rules by name: resolve a configured name to a rule, and bind a rule to a request as a `Judge`.

Not the place for the rules themselves.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from paceline.errors import InvalidParameter
from paceline.option_types import check_types
from paceline.sampling.block import verify_block
from paceline.sampling.coupled import verify_coupled, verify_sample_and_match
from paceline.sampling.law import Law
from paceline.sampling.lossy import (
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


@dataclass(frozen=True, slots=True)
class Rule:
    """A verification rule, and what is known of it.

    Attributes:
        verify: the rule; its options are keyword-only.
        changes: texts whose law it may change: none, those that are sampled, or greedy ones too.
        draws: without drafts it draws from the target's law; else it emits the most probable token.
        tosses_coins: it has acceptance coins, so that its output depends on the drafts even with a seed.
        judges_blocks: it judges a chain as a whole, so that drafts must not branch, and the verdict on a token depends
            on those after it.
    """

    verify: Callable[..., Verdict]
    changes: Literal["nothing", "sampled", "all"] = "nothing"
    draws: bool = True
    tosses_coins: bool = False
    judges_blocks: bool = False

    @property
    def is_lossy(self) -> bool:
        """Whether it changes the law of any text."""
        return self.changes != "nothing"

    @property
    def keeps_seeds(self) -> bool:
        """Whether a request with a seed gets plain sampling's text."""
        return not (self.is_lossy or self.tosses_coins)

    def may_change(self, is_greedy: bool, has_drafts: bool = True) -> bool:
        """Whether it may change the law of a request's text.

        Args:
            is_greedy: the request's temperature is 0.
            has_drafts: it judged drafts of the request.
        """
        if not has_drafts:
            return not (self.draws or is_greedy)
        return self.changes == "all" if is_greedy else self.is_lossy


RULES = {
    AUTO: Rule(verify_auto),
    "p/q": Rule(verify, tosses_coins=True),
    "block": Rule(verify_block, tosses_coins=True, judges_blocks=True),
    "coupled": Rule(verify_coupled),
    "sample_and_match": Rule(verify_sample_and_match),
    "rejection_sampling": Rule(verify_rejection_sampling, tosses_coins=True),
    "lenient": Rule(verify_lenient, "all", tosses_coins=True),
    "lenient_greedy": Rule(verify_lenient_greedy, "all", draws=False),
    "uniform_coin": Rule(verify_uniform_coin, "sampled", tosses_coins=True),
    "typical": Rule(verify_typical, "sampled", draws=False),
    "top_k": Rule(verify_top_k, "all", draws=False),
    "distance": Rule(verify_distance, "all", draws=False),
}
"""Every rule by its configuration name."""

_STRICTEST = {"k": 1, "distance": 0}
"""Options that are whole numbers, with their smallest values; all others are in (0, 1]."""


@dataclass(frozen=True, slots=True)
class Judge:
    """A verification rule bound to one request.

    Attributes:
        verify: the rule, with its options bound.
        randomness: the request's coins and draws.
        coupled: whether a drafter must draw with the target's noise.
        rule: what is known of the rule that the request asked for.
    """

    verify: Verifier
    randomness: Randomness
    coupled: bool
    rule: Rule

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
    rule, is_coupled = RULES[name], name == "coupled"
    if name == AUTO and (seed is not None or prefers_coupled):
        verifier, is_coupled = verify_coupled, True
    if seed is None:
        return Judge(verifier, CounterRandomness(fresh_seed()), is_coupled, rule)
    stream = 1 + number if rule.tosses_coins else 0
    return Judge(verifier, CounterRandomness(seed, stream), is_coupled, rule)


def resolve(name: str, **options: float) -> Verifier:
    """The rule called `name` with its options bound, e.g. ``resolve("lenient", lenience=0.3)``.

    Raises:
        InvalidParameter: no such rule, no such option, or a value outside its range: (0, 1], or whole numbers from
            `_STRICTEST` on.
    """
    rule = rule_called(name).verify
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
    parameters = inspect.signature(rule_called(name).verify).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)


def rule_called(name: str) -> Rule:
    """The rule called `name`. Raises InvalidParameter for an unknown one."""
    if name not in RULES:
        raise InvalidParameter("rule", f"{name!r} is unknown", f"use one of {', '.join(RULES)}")
    return RULES[name]
