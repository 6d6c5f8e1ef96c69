"""Scores of a text: the engine's own numbers however the text is cut, and its law under a request's settings."""

import numpy as np
import pytest

from paceline.engine.score import laws_of, logits_of, margin, rank, score
from paceline.errors import InvalidParameter
from paceline.models.rows import Part, build_rows
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all

SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.1, max_tokens=40, ignore_eos=True, seed=3)


def answer(engine_for, params, number=0):
    output = run_all(engine_for(), PROMPTS, params)[number]
    return [*output.prompt_token_ids, *output.token_ids], len(output.prompt_token_ids)


def test_logits_are_those_of_a_pass_over_the_whole_text_bit_for_bit(tiny):
    text = list(range(5, 95))
    whole = tiny.model.forward(build_rows([Part(range(6), 0, text)]), tiny.model.new_cache(6)).logits.copy()
    for chunk in (1, 7, 64):
        rows = [row.copy() for row in logits_of(tiny.model, text, 11, chunk)]
        assert np.array_equal(rows, whole[10:-1])


def test_a_greedy_answer_is_its_own_argmax(tiny, engine_for):
    text, num_prompt = answer(engine_for, SamplingParams(temperature=0, max_tokens=40))
    scores = score(tiny.model, text, num_prompt, SamplingParams(temperature=0, max_tokens=40))
    assert scores.picks.tolist() == text[num_prompt:]
    assert not scores.ranks.any()
    assert not scores.logprobs.any()
    assert (scores.margins > 0).all()


def test_scores_of_a_sampled_answer_are_those_of_its_laws(tiny, engine_for):
    text, num_prompt = answer(engine_for, SAMPLED, 3)
    scores = score(tiny.model, text, num_prompt, SAMPLED, num_top=3)
    laws = list(laws_of(tiny.model, text, num_prompt, SAMPLED))
    assert len(scores) == len(laws) == 40
    for place, (token, law) in enumerate(laws):
        assert scores.logprobs[place] == np.log(law.prob(token))
        assert scores.top_tokens[place, 0] == law.mode
        assert scores.top_probs[place].tolist()[: len(law.tokens)] == law.top(3)[1]
    assert np.isfinite(scores.logprobs).all(), "the engine drew a token that its own law forbids"


def test_another_text_is_seen_by_its_logprobs(tiny, engine_for):
    text, num_prompt = answer(engine_for, SAMPLED)
    narrow = SamplingParams(temperature=0.9, top_k=1, max_tokens=40)
    assert np.isneginf(score(tiny.model, text, num_prompt, narrow).logprobs).any()


def test_ranks_and_margins_by_hand():
    logits = np.array([1.0, 3.0, 3.0, 2.5], np.float32)
    assert [rank(logits, token) for token in range(4)] == [3, 0, 1, 2]
    assert margin(logits) == 0.0
    assert margin(logits[[0, 1, 3]]) == 0.5


@pytest.mark.parametrize(
    ("text", "first", "params", "field"),
    [
        ([1, 2, 3], 0, SAMPLED, "num_prompt_tokens"),
        ([1] * 600, 5, SAMPLED, "token_ids"),
        ([1, 2, 3], 1, SamplingParams(bad_words=["x"]), "bad_words"),
    ],
)
def test_what_cannot_be_scored_is_refused(tiny, text, first, params, field):
    with pytest.raises(InvalidParameter, match=f"^{field}"):
        score(tiny.model, text, first, params)
