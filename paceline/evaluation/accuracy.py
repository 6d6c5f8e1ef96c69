"""How often a draft model's i-th guess is the target's own token: what the best static tree is made from."""

from collections.abc import Sequence

import numpy as np

from paceline.engine.score import logits_of, rank
from paceline.models.base import CausalLM


def rank_counts(model: CausalLM, token_ids: Sequence[int], num_prompt_tokens: int, num_ranks: int) -> np.ndarray:
    """[num_ranks + 1] int64: output tokens by the rank that `model` gives them, the last entry for all later ranks.

    The model reads the true text before each token, as it does below an accepted path, so the shares hold at every
    depth. Sampled texts count as well as greedy ones: a share is then the chance that the target draws that guess.

    Args:
        model: a draft model; a cache is made for the call.
        token_ids: prompt and output of one request.
        num_prompt_tokens: how many of them are the prompt, at least 1.
        num_ranks: guesses told apart.
    """
    counts = np.zeros(num_ranks + 1, np.int64)
    output = token_ids[num_prompt_tokens:]
    for token, logits in zip(output, logits_of(model, token_ids, num_prompt_tokens), strict=True):
        counts[min(rank(logits, token), num_ranks)] += 1
    return counts
