"""How close two tokens were where two texts diverge: whether rounding can explain the difference."""

from collections.abc import Sequence
from math import inf

import numpy as np

from paceline.engine.llm import LLM
from paceline.engine.score import logits_of
from paceline.sampling import CounterRandomness, Warper
from paceline.types import SamplingParams

NEAR_TIE = 1e-3
"""Largest gap of two logits at which a difference counts as rounding."""


def gap_where_they_part(
    llm: LLM, prompt: Sequence[int], truth: Sequence[int], other: Sequence[int], params: SamplingParams
) -> float:
    """The gap between the logits of the two tokens at the first position where two texts differ.

    Penalties are included, and for sampled texts the seed's noise. Infinite if one text is a prefix of the other, or if
    one of the tokens has probability 0.

    Args:
        llm: the model with plain decoding.
        prompt, truth, other: token ids; the two texts that followed the prompt.
        params: of both requests; sampled texts need a seed.
    """
    pairs = enumerate(zip(truth, other, strict=False))
    place = next((number for number, (ours, theirs) in pairs if ours != theirs), None)
    if place is None:
        return inf
    said = [*prompt, *truth[:place]]
    *_, logits = logits_of(llm.loaded.model, [*said, truth[place]], len(said))
    ends = llm.loaded.source.eos_token_ids
    law = Warper(params, eos_token_ids=ends, token_ids=said, num_prompt_tokens=len(prompt)).confidence_law(logits)
    tokens = np.array([truth[place], other[place]])
    probs = np.asarray(law.on(tokens), np.float64)
    if not (probs > 0).all():
        return inf
    if params.is_greedy:
        return abs(float(np.diff(np.log(probs))[0]))
    assert params.seed is not None
    noise = CounterRandomness(params.seed).exponentials(tokens, len(said), "target")
    return params.temperature * abs(float(np.diff(np.log(probs) - np.log(noise))[0]))
