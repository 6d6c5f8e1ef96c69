"""How often a draft model's i-th guess is the target's own token: what the best static tree is made from."""

from collections.abc import Sequence

import numpy as np

from paceline.models.base import CausalLM, pages_for
from paceline.models.rows import Part, build_rows

_CHUNK = 64
"""Rows of a pass, and rows of logits held at once."""


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
    length = len(token_ids) - 1
    cache = model.new_cache(pages_for(max(length, 1)))
    for start in range(0, length, _CHUNK):
        end = min(start + _CHUNK, length)
        scored = range(max(start, num_prompt_tokens - 1), end)
        part = Part(range(cache.num_pages), start, token_ids[start:end], logits="all" if scored else "none")
        logits = model.forward(build_rows([part]), cache).logits
        for at in scored:
            counts[min(_rank(logits[at - start], token_ids[at + 1]), num_ranks)] += 1
    return counts


def _rank(logits: np.ndarray, token: int) -> int:
    """Tokens that come before `token`: more likely ones, and equally likely ones with a lower id."""
    own = logits[token]
    return int((logits > own).sum() + (logits[:token] == own).sum())
