"""`Warper`: each processor against its definition, the order, ties, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.sampling import Law, Warper
from paceline.sampling.warp import truncated_law
from paceline.types import SamplingParams

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3])).astype(np.float32)


def law(logits: Any = LOGITS, history=(), *, bad_words=(), eos=(), prompt=(), **fields: Any) -> Law:
    warper = Warper(SamplingParams(**fields), bad_word_ids=bad_words, eos_token_ids=eos, prompt_token_ids=prompt)
    return warper.law(np.asarray(logits, dtype=np.float32), history)


def close(law: Law, wanted: dict[int, float]) -> bool:
    return law.tokens.tolist() == sorted(wanted) and np.allclose(law.probs, [wanted[t] for t in sorted(wanted)], 1e-6)


def test_plain_law_is_the_softmax() -> None:
    assert close(law(), {0: 0.1, 1: 0.4, 2: 0.2, 3: 0.3})
    assert close(law(temperature=0.5), {0: 1 / 30, 1: 16 / 30, 2: 4 / 30, 3: 9 / 30})


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    assert law([1, 3, 3, 2], temperature=0).tokens.tolist() == [1]
    assert law([1, 3, 3, 2], temperature=0, logit_bias={3: 1.0}).tokens.tolist() == [1]
    assert law([1, 3, 3, 2], temperature=0, logit_bias={3: 1.5}).tokens.tolist() == [3]


def test_truncations() -> None:
    assert close(law(top_k=2), {1: 4 / 7, 3: 3 / 7})
    assert close(law(top_p=0.69), {1: 4 / 7, 3: 3 / 7})
    assert close(law(top_p=0.71), {1: 4 / 9, 2: 2 / 9, 3: 3 / 9})
    assert close(law(top_p=1e-9), {1: 1.0})
    assert close(law(min_p=0.45), {1: 4 / 9, 2: 2 / 9, 3: 3 / 9})
    assert close(law(min_p=1.0), {1: 1.0})
    assert close(law(top_k=99), {0: 0.1, 1: 0.4, 2: 0.2, 3: 0.3})


def test_ties_at_the_edges() -> None:
    assert law([0, 0, 0, -9], top_k=1).tokens.tolist() == [0, 1, 2]
    assert law([0, 0, 0, 0], top_p=0.5).tokens.tolist() == [0, 1]


def test_each_truncation_acts_on_what_the_one_before_left() -> None:
    """top-p 0.5 of all is {1, 3}; of the top 2, renormalised, it is {1}."""
    assert law(top_p=0.5).tokens.tolist() == [1, 3]
    assert law(top_p=0.5, top_k=2).tokens.tolist() == [1]
    assert law(top_k=3, min_p=0.6).tokens.tolist() == [1, 3]


def test_penalties() -> None:
    scores = [2.0, -1.0, 0.5, 0.0]

    def edited(history, **fields):
        result = law(scores, history, **fields)
        return np.log(result.probs) - np.log(result.probs[3])

    assert np.allclose(edited((1,), prompt=(0,), repetition_penalty=2.0), [1.0, -2.0, 0.5, 0.0], atol=1e-6)
    assert np.allclose(edited((0, 0, 1), presence_penalty=0.5), [1.5, -1.5, 0.5, 0.0], atol=1e-6)
    assert np.allclose(edited((0, 0, 1), prompt=(2,), frequency_penalty=0.5), [1.0, -1.5, 0.5, 0.0], atol=1e-6)
    assert np.allclose(edited((0,), logit_bias={0: -3.0}, repetition_penalty=2.0), [-2.0, -1.0, 0.5, 0.0], atol=1e-6)


def test_min_tokens_forbids_every_end_id_until_then() -> None:
    fields: dict[str, Any] = dict(eos=(1,), stop_token_ids=(3,), min_tokens=2)
    assert law(history=(0,), **fields).tokens.tolist() == [0, 2]
    assert law(history=(0, 0), **fields).tokens.tolist() == [0, 1, 2, 3]


def test_bad_words_forbid_their_last_token_behind_the_others() -> None:
    words = ((3,), (1, 2, 0), (2, 2))
    assert law(bad_words=words).tokens.tolist() == [0, 1, 2]
    assert law(bad_words=words, history=(0, 1, 2)).tokens.tolist() == [1]
    assert law(bad_words=words, history=(2,), prompt=(1,)).tokens.tolist() == [0, 1]


def test_logits_stay_as_they_were() -> None:
    logits = LOGITS.copy()
    law(
        logits,
        (1, 2),
        repetition_penalty=1.5,
        min_tokens=5,
        eos=(0,),
        bad_words=((2,),),
        logit_bias={1: 2.0},
        top_p=0.5,
    )
    assert np.array_equal(logits, LOGITS)


def test_ids_beyond_a_smaller_row_are_passed_over() -> None:
    smaller = law(LOGITS[:3], (3, 1), eos=(3,), prompt=(9,), min_tokens=5, bad_words=((3,),), repetition_penalty=1.2)
    assert smaller.tokens.tolist() == [0, 1, 2]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_broken_logits_are_refused_with_the_likely_cause(bad: float, temperature: float) -> None:
    with pytest.raises(InvalidParameter, match=r"logits: the model gave (nan|inf) at token 2.*overflowed"):
        law([0, 1, bad, 3], temperature=temperature)


def test_forbidding_everything_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="every token is forbidden"):
        law(bad_words=tuple((token,) for token in range(4)))


@pytest.mark.parametrize("fields", [{"logit_bias": {4: 1.0}}, {"logit_bias": {-1: 1.0}}, {"logit_bias": {0: math.nan}}])
def test_unusable_biases_are_refused_at_the_door(fields: dict) -> None:
    with pytest.raises(InvalidParameter) as caught:
        Warper(SamplingParams(**fields), vocab_size=4)
    assert caught.value.field == "logit_bias"


def test_a_bias_of_minus_infinity_forbids() -> None:
    assert law(logit_bias={1: -math.inf}).tokens.tolist() == [0, 2, 3]


def slow_truncated_law(gaps: np.ndarray, min_p: float, top_k: int, top_p: float) -> list[int]:
    """The kept tokens by full sorting."""
    weights = np.exp(gaps)
    ranked = [i for i in np.lexsort((np.arange(len(gaps)), -weights)).tolist() if weights[i] > 0]
    ranked = [i for i in ranked if not min_p or gaps[i] >= np.log(min_p)]
    if 0 < top_k < len(ranked):
        ranked = [i for i in ranked if gaps[i] >= gaps[ranked[top_k - 1]]]
    if top_p == 1:
        return sorted(ranked)
    total = weights[ranked].sum()
    before = np.concatenate([[0.0], weights[ranked].cumsum()[:-1]])
    return sorted(i for i, mass in zip(ranked, before, strict=True) if mass < top_p * total * (1 - 1e-12))


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.01, 1.0, 4.0, 300.0]),
    min_p=st.sampled_from([0.0, 0.013]),
    top_k=st.sampled_from([0, 1, 7, 150]),
    top_p=st.sampled_from([1.0, 0.9137, 0.5071, 0.0513]),
)
def test_fast_truncation_is_the_sorted_one(seed: int, spread: float, min_p: float, top_k: int, top_p: float) -> None:
    scores = np.random.default_rng(seed).standard_normal(300) * spread
    scores[:20] = -np.inf
    gaps = scores - scores.max()
    fast = truncated_law(gaps, min_p=min_p, top_k=top_k, top_p=top_p)
    assert fast.tokens.tolist() == slow_truncated_law(gaps, min_p, top_k, top_p)
    assert fast.probs.sum() == pytest.approx(1, abs=1e-12)
    assert (fast.probs > 0).all()


def test_tiny_temperatures_do_not_overflow() -> None:
    assert law([1, 3, 2, 0], temperature=1e-300).tokens.tolist() == [1]
