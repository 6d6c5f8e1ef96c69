"""Draft contexts for drafters that read nothing but token ids."""

from collections.abc import Sequence

import numpy as np

from paceline.drafters.base import DraftContext, Drafter
from paceline.sampling import CounterRandomness, Law, TokenTree
from paceline.types import SamplingParams


def no_warp(_logits: np.ndarray, _history: Sequence[int]) -> Law:
    raise AssertionError("a drafter without logits has nothing to warp")


def context(
    token_ids: Sequence[int], budget: int = 10, request_id: str = "r", num_prompt: int = 1, salt: bytes = b""
) -> DraftContext:
    randomness = CounterRandomness(0)
    return DraftContext(request_id, token_ids, num_prompt, budget, SamplingParams(), no_warp, randomness, salt=salt)


def propose(drafter: Drafter, token_ids: Sequence[int], budget: int = 10, **fields) -> TokenTree:
    """The tree for one request."""
    [tree] = drafter.propose([context(token_ids, budget, **fields)])
    return tree
