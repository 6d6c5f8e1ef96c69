"""Greedy chains of models and heads that draft several levels in one call, without warping or drawing in between.

The tokens are the same as level by level, for requests that take the argmax of the unedited logits. The length policy
is applied afterwards to the draft's probabilities, and tokens that it would not have drafted are dropped.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import mul
from typing import Protocol

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.trees.growth import Growth
from paceline.models.chains import GreedyDraft
from paceline.sampling.law import Law
from paceline.sampling.tree import TokenTree
from paceline.speculation.policies import DraftLaw


class ChainRunner(Protocol):
    """A runner that drafts greedy chains in one call."""

    def can_hold(self, growth: Growth) -> bool:
        """See `draft_runner.Runner`."""
        ...

    def admit(self, growths: Sequence[Growth]) -> Sequence[Growth]:
        """See `draft_runner.Runner`."""
        ...

    def draft_greedy(self, growths: Sequence[Growth], num_tokens: int) -> GreedyDraft:
        """Chains of `num_tokens` tokens after the last committed tokens of admitted growths."""
        ...


class Peak:
    """A belief of which only the largest probability is known."""

    def __init__(self, prob: float) -> None:
        self._prob = prob

    @property
    def probs(self) -> np.ndarray:
        """[1] that probability."""
        return np.array([self._prob])


def greedy_chains(runner: ChainRunner, growths: Sequence[Growth]) -> dict[str, TokenTree]:
    """A chain for each of `growths` that the runner can hold, by request id."""
    fitting = [growth for growth in growths if runner.can_hold(growth)]
    chains: dict[str, TokenTree] = {}
    ordered = sorted(fitting, key=_length)
    for length, group in groupby(ordered, _length):
        waiting: Sequence[Growth] = list(group)
        while waiting:
            seated = runner.admit(waiting)
            tokens, probs = runner.draft_greedy(seated, length)
            for growth, own, sure in zip(seated, tokens.tolist(), probs.tolist(), strict=True):
                chains[growth.context.request_id] = _chain(growth.context, own, sure)
            waiting = waiting[len(seated) :]
    return chains


def chains_at_once(context: DraftContext) -> bool:
    """Whether a request's chain may be drafted in one call: it takes the argmax, and the policy needs no full laws."""
    return context.takes_argmax and not context.asks_laws


def _length(growth: Growth) -> int:
    return growth.context.longest


def _chain(context: DraftContext, tokens: Sequence[int], probs: Sequence[float]) -> TokenTree:
    """The chain up to an end token or where the policy stops; a node's chance is the product of probabilities to it."""
    shows_beliefs = context.asks_beliefs and context.rank is not None
    laws: list[DraftLaw] = []
    for count, (token, prob) in enumerate(zip(tokens, probs, strict=True), start=1):
        laws.append(Peak(prob) if shows_beliefs else Law.one_hot(token))
        if count == len(tokens) or token in context.end_token_ids or not context.keep_drafting(laws):
            break
    kept = tuple(tokens[: len(laws)])
    chances = tuple(accumulate(probs[: len(kept)], mul))
    return TokenTree(kept, tuple(range(-1, len(kept) - 1)), chances=chances)
