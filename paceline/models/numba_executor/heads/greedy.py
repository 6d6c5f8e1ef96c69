"""What a greedy chain hands back, the same for every kind of net."""

from typing import NamedTuple

import numpy as np

from paceline.models.numba_executor.heads.interpret import Batch


class GreedyDraft(NamedTuple):
    """Drafted target ids [requests, levels] int32, and the probability of each, [requests, levels] float32.

    A probability is the highest of the draft's own law over its vocabulary at temperature 1.
    """

    tokens: np.ndarray
    top_probs: np.ndarray


def drafted(batch: Batch, num_tokens: int, num_requests: int) -> GreedyDraft:
    """The last `num_tokens` spans of a batch, of `num_requests` rows each."""
    last = num_tokens * num_requests
    tokens, probs = (values[len(values) - last :].reshape(num_tokens, num_requests).T
                     for values in (batch.token_ids, batch.top_probs))  # fmt: skip
    return GreedyDraft(tokens, probs)
