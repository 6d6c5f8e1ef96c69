"""The result of a greedy chain, the same for every kind of net."""

from paceline.models.chains import ChainDraft
from paceline.models.numba_executor.heads.interpret import Batch


def drafted(batch: Batch, num_tokens: int, num_requests: int) -> ChainDraft:
    """The draft in the last `num_tokens` spans of `num_requests` rows each."""
    last = num_tokens * num_requests
    tokens, probs = (values[len(values) - last :].reshape(num_tokens, num_requests).T
                     for values in (batch.token_ids, batch.top_probs))  # fmt: skip
    return ChainDraft(tokens, probs)
