"""`Warper`: each processor against its definition, the order, ties, and what is refused."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.sampling import Law, Warper
from paceline.sampling.edits import Edits
from paceline.sampling.warp import truncated_law
from paceline.types import SamplingParams
from tests.fakes import CountingList

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3])).astype(np.float32)


def law(logits: Any = LOGITS, history=(), *, bad_words=(), eos=(), prompt=(), **fields: Any) -> Law:
    """The same, bit for bit, whatever part of the history is committed."""
    laws = []
    for cut in range(len(history) + 1):
        warper = Warper(
            SamplingParams(**fields), bad_word_ids=bad_words, eos_token_ids=eos,
            token_ids=[*prompt, *history[:cut]], num_prompt_tokens=len(prompt),
        )  # fmt: skip
        laws.append(warper.law(np.asarray(logits, dtype=np.float32), history[cut:]))
    assert len({(law.tokens.tobytes(), law.probs.tobytes()) for law in laws}) == 1
    return laws[0]


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


def test_only_allowed_ids_are_left() -> None:
    assert close(law(allowed_token_ids=[3, 1]), {1: 4 / 7, 3: 3 / 7})
    assert close(law(allowed_token_ids=[0, 2, 3], top_k=2), {2: 2 / 5, 3: 3 / 5})
    assert law(temperature=0, allowed_token_ids=[0, 2]).tokens.tolist() == [2]
    assert not Warper(SamplingParams(temperature=0, allowed_token_ids=[1])).takes_argmax
    with pytest.raises(InvalidParameter, match="every token is forbidden"):
        law(temperature=0, allowed_token_ids=[1], bad_words=[(1,)])
    with pytest.raises(InvalidParameter, match="allowed_token_ids"):
        Warper(SamplingParams(allowed_token_ids=[4]), vocab_size=4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_and_allowed_ids_both_hold(temperature: float) -> None:
    class Grammar:
        def allowed(self, path: Any) -> np.ndarray:
            return np.array([True, True, True])

        def allows(self, token: int, path: Any) -> bool:
            return token < 3

    params = SamplingParams(temperature=temperature, allowed_token_ids=[2, 3])
    found = Warper(params, grammar=Grammar()).law(LOGITS)  # type: ignore[arg-type]
    assert found.tokens.tolist() == [2]


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


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidParameter) as caught:
        Warper(SamplingParams(logit_bias={4: 1.0}), vocab_size=4)
    assert caught.value.field == "logit_bias"


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


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-300, 1e-45, 1e-12])
def test_tiny_temperatures_give_the_law_of_the_largest(temperature: float) -> None:
    """The limit of the law as the temperature falls: uniform over the tokens that share the largest logit."""
    smallest_step = np.nextafter(np.float32(3), np.float32(0))
    with np.errstate(all="raise", under="ignore"):
        assert close(law([1, 3, 2, 3, smallest_step], temperature=temperature), {1: 0.5, 3: 0.5})
        assert close(law([-3e38, 3e38, 0, 3e38], temperature=temperature, top_p=0.9), {1: 0.5, 3: 0.5})


def test_a_temperature_as_small_as_the_gap_is_no_limit_yet() -> None:
    gap = np.finfo(np.float32).smallest_subnormal
    assert close(law([gap, 0], temperature=float(gap)), {0: 1 / (1 + math.exp(-1)), 1: 1 / (1 + math.e)})


def test_the_hottest_law_is_nearly_uniform() -> None:
    assert np.allclose(law(temperature=100).probs, 0.25, atol=0.01)


@pytest.mark.parametrize("largest", [3e38, -3e38])
def test_every_lawful_request_stays_finite_on_every_finite_row(largest: float) -> None:
    logits = [largest, -largest, 1e-45, 0]
    for repetition, penalty, bias in itertools.product((0.01, 100), (-2, 2), (-100, 100)):
        result = law(
            logits, (0, 1) * 500, repetition_penalty=repetition, presence_penalty=penalty, frequency_penalty=penalty,
            logit_bias=dict.fromkeys(range(4), bias), temperature=1e-310,
        )  # fmt: skip
        assert result.probs.sum() == pytest.approx(1)


EVERYTHING = SamplingParams(
    repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.2, logit_bias={1: 0.5}, min_tokens=3, top_k=5
)


def warper_over(token_ids: list[int], num_prompt: int) -> Warper:
    words = ((3, 4), (1, 2, 0))
    return Warper(EVERYTHING, bad_word_ids=words, eos_token_ids=(7,), token_ids=token_ids, num_prompt_tokens=num_prompt)


def same(one: Law, other: Law) -> bool:
    return np.array_equal(one.tokens, other.tokens) and np.array_equal(one.probs, other.probs)


def test_a_law_reads_each_committed_token_once() -> None:
    rng = np.random.default_rng(0)
    text = CountingList(rng.integers(0, 8, 5000).tolist())
    row = rng.standard_normal(8).astype(np.float32)
    warper = warper_over(text, 2000)
    warper.law(row, (1, 2))
    read = text.num_read
    for step in range(100):
        text += rng.integers(0, 8, 3).tolist()
        for path in ((), (1,), (1, 2), (1, 2, 5)):
            warper.law(row, path)
        # three new tokens for the counts, and at most the two that bad words look back on, for each of four nodes
        assert text.num_read - read <= (step + 1) * (3 + 4 * 2)


def test_requests_share_nothing() -> None:
    """Two warpers in turns, while both texts grow, give what fresh ones give; no path is remembered."""
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 8, 3).tolist() for _ in range(2)]
    warpers = [warper_over(text, 3) for text in texts]
    for _ in range(60):
        row = rng.standard_normal(8).astype(np.float32)
        for text, warper in zip(texts, warpers, strict=True):
            path = rng.integers(0, 8, rng.integers(0, 4)).tolist()
            assert same(warper.law(row, path), warper_over([*text], 3).law(row, path))
            text += rng.integers(0, 8, rng.integers(0, 3)).tolist()


def test_a_fulfilled_minimum_edits_nothing(monkeypatch) -> None:
    """No row is copied and no list of the output is made once enough was said."""
    text = [0] * 10
    warper = Warper(SamplingParams(temperature=0, min_tokens=12), eos_token_ids=(1,), token_ids=text)
    monkeypatch.setattr(Edits, "apply", lambda *_: pytest.fail("the row was edited"))
    assert warper.law(LOGITS, (0, 0)).tokens.tolist() == [1]
    text += [0, 0]
    assert warper.law(LOGITS).tokens.tolist() == [1]


@pytest.mark.parametrize("edit", [{}, {"logit_bias": {5: 3.0}}, {"repetition_penalty": 1.3}, {"min_tokens": 2}])
@pytest.mark.parametrize("cut", [{}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 0}])
def test_logits_of_some_tokens_are_warped_as_if_the_others_were_impossible(edit, cut):
    params = SamplingParams(**({"temperature": 0.7} | edit | cut))
    warper = Warper(params, eos_token_ids=(2,), token_ids=[1, 5, 9], num_prompt_tokens=2)
    ids, logits = np.array([0, 2, 5, 8, 9, 13]), np.random.default_rng(1).normal(size=6).astype(np.float32)
    whole = np.full(20, -np.inf, np.float32)
    whole[ids] = logits
    for of_some, of_all in ((warper.law(logits, [8], ids), warper.law(whole, [8])),
                            (warper.confidence_law(logits, [8], ids), warper.confidence_law(whole, [8]))):  # fmt: skip
        np.testing.assert_array_equal(of_some.tokens, of_all.tokens)
        np.testing.assert_allclose(of_some.probs.astype(float), of_all.probs.astype(float), rtol=1e-12)
