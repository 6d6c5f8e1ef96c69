"""How close two tokens were where two texts diverge: whether rounding can explain the difference."""

from collections.abc import Sequence
from math import inf

import numpy as np

from paceline.engine.llm import LLM
from paceline.engine.score import logits_of
from paceline.sampling import CounterRandomness, Warper
from paceline.sampling.law import Law
from paceline.sampling.randomness import Randomness
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
    return params.temperature * _gap_of_draws(law, tokens, CounterRandomness(params.seed), len(said))


def gap_from_draw(law: Law, token: int, noise: Randomness, position: int, temperature: float) -> float:
    """The gap between the logits of `token`, which was emitted, and the token that `noise` draws; 0 if it is that one.

    Args:
        law: the target's, warped, at the absolute `position`.
        noise: of the request.
    """
    drawn = noise.draw(law, position, "target")
    if drawn == token:
        return 0.0
    return temperature * _gap_of_draws(law, np.array([token, drawn]), noise, position)


def _gap_of_draws(law: Law, tokens: np.ndarray, noise: Randomness, position: int) -> float:
    """How far two tokens are apart in the race of log p - log noise; infinite if one of them has probability 0."""
    probs = np.asarray(law.on(tokens), np.float64)
    if not (probs > 0).all():
        return inf
    times = np.asarray(noise.exponentials(tokens, position, "target"), np.float64)
    return abs(float(np.diff(np.log(probs) - np.log(times))[0]))
