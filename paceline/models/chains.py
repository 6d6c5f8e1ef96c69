"""Greedy draft chains of several tokens in one call, for models and heads that can compute them.

Not for sampled drafts (`drafters/`), nor for requests whose tokens depend on more than the largest logit.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from paceline.models.base import KVCache, Rows


class GreedyDraft(NamedTuple):
    """Drafted target ids [requests, levels] int32, and the probability of each, [requests, levels] float32.

    Probabilities are those at temperature 1; those of a head are over its own vocabulary.
    """

    tokens: np.ndarray
    top_probs: np.ndarray


@runtime_checkable
class DraftsChains(Protocol):
    """A `CausalLM` that can draft several tokens greedily without returning logits in between."""

    def draft_greedy(self, rows: Rows, cache: KVCache, num_tokens: int) -> GreedyDraft:
        """A chain of the most probable tokens, the lowest id on ties, after each logit row.

        Keys and values of the drafted tokens are written to the slots of positions p + 1, p + 2, .. after a logit row
        at position p; the pages of its segment must hold `num_tokens` - 1 more slots.

        Args:
            rows, cache: as for `forward`; logit rows must not be in a tree branch.
            num_tokens: tokens to draft, 1 or more.
        """
        ...
