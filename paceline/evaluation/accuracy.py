"""Accuracies of a draft model's i-th most likely token, from which the best static tree is built."""

from collections.abc import Sequence

import numpy as np

from paceline.engine.score import logits_of, rank
from paceline.models.base import CausalLM


def rank_counts(model: CausalLM, token_ids: Sequence[int], num_prompt_tokens: int, num_ranks: int) -> np.ndarray:
    """[num_ranks + 1] int64: output tokens by the rank that `model` gives them, the last entry for all later ranks.

    The model reads the true text before each token, as it does below an accepted path, so the frequencies are valid at
    every depth. For sampled texts, a frequency estimates the probability that the target draws that guess.

    Args:
        model: a draft model; a new cache is allocated for the call.
        token_ids: prompt and output of one request.
        num_prompt_tokens: length of the prompt, at least 1.
        num_ranks: number of ranks to distinguish.
    """
    counts = np.zeros(num_ranks + 1, np.int64)
    output = token_ids[num_prompt_tokens:]
    for token, logits in zip(output, logits_of(model, token_ids, num_prompt_tokens), strict=True):
        counts[min(rank(logits, token), num_ranks)] += 1
    return counts
