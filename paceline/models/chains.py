"""Chains of likeliest tokens drafted in one call: what models and heads that can do so hand out.

Not for drawing (`drafters/`), nor for requests whose tokens depend on more than the largest logit.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from paceline.models.base import KVCache, Rows


class GreedyDraft(NamedTuple):
    """Drafted target ids [requests, levels] int32, and the probability of each, [requests, levels] float32.

    A probability is the largest of the law at temperature 1, of a head over its own vocabulary.
    """

    tokens: np.ndarray
    top_probs: np.ndarray


@runtime_checkable
class DraftsChains(Protocol):
    """What a `CausalLM` has besides when it can draft several tokens without handing out logits between them."""

    def draft_greedy(self, rows: Rows, cache: KVCache, num_tokens: int) -> GreedyDraft:
        """A chain of the likeliest tokens, the first on ties, below each asked row.

        The rows below an asked row at position p are those of positions p + 1, p + 2, .. in the pages of its segment,
        which must hold `num_tokens` - 1 more slots; their keys and values are written there.

        Args:
            rows, cache: as for `forward`; asked rows lie in no branch.
            num_tokens: tokens to draft, 1 or more.
        """
        ...
