"""Chains of models and heads that draft several levels in one call, without laws on the host in between.

The tokens are those of drafting level by level: for requests that take the argmax of the unedited logits, and, where
the runner can draw, for sampled requests under the coupled rule, whose noise is known beforehand and whose verification
needs no draft laws. The length policy is applied afterwards to the draft's probabilities, and tokens that it would not
have drafted are dropped. So are those beyond a request's own length: requests of different lengths, because they end
soon or their drafts are less certain, are drafted to the longest, in one call and not in one for each length.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, compress
from operator import mul, not_
from typing import Protocol

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.trees.drawn import Drawn
from paceline.drafters.trees.growth import Growth
from paceline.models.chains import ChainDraft, Draws
from paceline.sampling.law import Law
from paceline.sampling.tree import TokenTree
from paceline.speculation.policies import DraftLaw


class ChainRunner(Protocol):
    """A runner that drafts chains in one call."""

    @property
    def can_draw(self) -> bool:
        """Whether `draft_chains` takes `draws`."""
        ...

    def can_hold(self, growth: Growth) -> bool:
        """See `growing.Runner`."""
        ...

    def admit(self, growths: Sequence[Growth]) -> Sequence[Growth]:
        """See `growing.Runner`."""
        ...

    def draft_chains(self, growths: Sequence[Growth], num_tokens: int, draws: Draws | None = None) -> ChainDraft:
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


def chains_at_once(runner: ChainRunner | None, growths: Sequence[Growth]) -> dict[str, TokenTree]:
    """By request id, a chain for each of `growths` that the runner can draft in one call, and hold."""
    if runner is None:
        return {}
    chains: dict[str, TokenTree] = {}
    waiting = [growth for growth in growths if _is_known(growth.context, runner) and runner.can_hold(growth)]
    own = {growth.context.request_id: growth.context for growth in waiting}
    while waiting:
        length = max([growth.context.longest for growth in waiting])
        levelled = [_to_level(length, growth) for growth in waiting]
        fits = [runner.can_hold(growth) for growth in levelled]
        waiting = list(compress(waiting, map(not_, fits)))
        together: Sequence[Growth] = list(compress(levelled, fits))
        while together:
            seated = runner.admit(together)
            contexts = [own[growth.context.request_id] for growth in seated]
            is_greedy = all([context.takes_argmax for context in contexts])
            draws = None if is_greedy else _draws(contexts, length)
            tokens, probs = runner.draft_chains(seated, length, draws)
            for context, drafted, sure in zip(contexts, tokens.tolist(), probs.tolist(), strict=True):
                chains[context.request_id] = _chain(context, drafted[: context.longest], sure[: context.longest])
            together = together[len(seated) :]
    return chains


def _is_known(context: DraftContext, runner: ChainRunner) -> bool:
    """Whether every token follows from logits that the host does not see, and the policy needs no full laws."""
    if context.asks_laws or not context.never_edits:
        return False
    return context.params.is_greedy or (runner.can_draw and context.target_key is not None)


def _to_level(length: int, growth: Growth) -> Growth:
    """A growth of a chain of `length` tokens in the place of a shorter one: a runner needs room for all of them."""
    context = growth.context
    if context.longest == length:
        return growth
    return Drawn(replace(context, budget=max(context.budget, length), max_depth=length))


def _draws(contexts: Sequence[DraftContext], num_tokens: int) -> Draws:
    """The draws of `num_tokens` tokens each, with the keys of the target's draw after them and of as many again."""
    size = 2 * (num_tokens + 1)
    params = [context.params for context in contexts]
    return Draws(
        np.array([own.temperature for own in params], np.float64),
        np.array([own.min_p for own in params], np.float64),
        np.array([own.top_k for own in params], np.int64),
        np.array([own.top_p for own in params], np.float64),
        np.array([context.target_keys(size) or [0] * size for context in contexts], np.uint64),
    )


def _chain(context: DraftContext, tokens: Sequence[int], probs: Sequence[float]) -> TokenTree:
    """The chain up to an end token or where the policy stops.

    A greedy chain's nodes have chances, the product of probabilities to each; drawn ones do not, because the rate at
    which two laws agree on a draw is not the largest probability of one.
    """
    shows_beliefs = context.asks_beliefs and context.rank is not None
    laws: list[DraftLaw] = []
    for count, (token, prob) in enumerate(zip(tokens, probs, strict=True), start=1):
        laws.append(Peak(prob) if shows_beliefs or not context.takes_argmax else Law.one_hot(token))
        if count == len(tokens) or token in context.end_token_ids or not context.keep_drafting(laws):
            break
    kept = tuple(tokens[: len(laws)])
    chances = tuple(accumulate(probs[: len(kept)], mul)) if context.takes_argmax else None
    return TokenTree(kept, tuple(range(-1, len(kept) - 1)), chances=chances)
