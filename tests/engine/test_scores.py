"""Log-probabilities: right for every accepted token, and the same with and without drafts, bit for bit."""

import math

import numpy as np
import pytest

from paceline.models.rows import Part, build_rows
from paceline.sampling.logprobs import processed_logprobs, raw_logprobs
from paceline.sampling.warp import Warper
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all
from tests.fakes import Oracle


def asked(**changes):
    return SamplingParams(**({"temperature": 0, "max_tokens": 24, "ignore_eos": True, "logprobs": 3} | changes))


def all_logits(tiny, token_ids):
    """[n, vocab] of the model after each token of a sequence, computed in one pass."""
    pages = range(-(-len(token_ids) // 16))
    return tiny.model.forward(build_rows([Part(pages, 0, token_ids)]), tiny.model.new_cache(len(pages))).logits


def oracle(engine_for):
    plain = run_all(engine_for(), params=asked(logprobs=None, max_tokens=40))
    return Oracle({o.prompt_token_ids: [*o.prompt_token_ids, *o.token_ids] for o in plain})


FIXED = {"method": "plain", "num_draft_tokens": 5, "policy": "fixed"}


@pytest.mark.parametrize("mode", ["raw", "processed"])
@pytest.mark.parametrize("temperature", [0, 0.9])
def test_drafts_change_no_bit_of_them(engine_for, mode, temperature):
    params = asked(logprobs_mode=mode, temperature=temperature, seed=5, frequency_penalty=0.5)
    plain = run_all(engine_for(), params=params)
    drafted = run_all(engine_for(FIXED, oracle(engine_for)), params=params)
    if temperature == 0:
        assert sum(output.stats.num_draft_tokens for output in drafted) > 50
    assert [o.outputs[0].logprobs for o in drafted] == [o.outputs[0].logprobs for o in plain]
    assert all(len(o.outputs[0].logprobs or ()) == len(o.token_ids) for o in drafted)


def test_they_are_the_models_own(engine_for, tiny):
    [output] = run_all(engine_for(FIXED, oracle(engine_for)), PROMPTS[:1], asked(prompt_logprobs=2))
    assert output.stats.num_accepted_tokens > 5
    token_ids = [*output.prompt_token_ids, *output.token_ids]
    logits = all_logits(tiny, token_ids).astype(np.float64)
    laws = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    told = [*(output.prompt_logprobs or ()), *(output.outputs[0].logprobs or ())]
    assert told[0] is None and len(told) == len(token_ids)
    for position, entry in enumerate(told[1:], 1):
        law = laws[position - 1]
        assert entry is not None and entry.token_id == token_ids[position]
        assert entry.logprob == pytest.approx(law[token_ids[position]], abs=1e-4)
        best = np.argsort(-law, kind="stable")[: len(entry.top)]
        assert [token for token, _ in entry.top] == best.tolist()
    assert len(told[3].top) == 2 and len(told[-1].top) == 3


def test_the_prompts_are_told_whatever_the_cache_holds_and_for_several_samples(engine_for):
    engine = engine_for(max_num_batched_tokens=8)
    long = PROMPTS[0] * 3
    run_all(engine, [long])
    [first] = run_all(engine, [long], asked(prompt_logprobs=0, n=2, temperature=1, seed=1))
    [second] = run_all(engine_for(), [long], asked(prompt_logprobs=0))
    assert first.prompt_logprobs == second.prompt_logprobs
    assert first.metrics.num_cached_tokens == 0
    assert len(first.prompt_logprobs or ()) == len(long)


def test_streams_carry_them_and_stops_cut_them(engine_for):
    [whole] = run_all(engine_for(), PROMPTS[:1], asked())
    stop = chr(next(token for token in whole.token_ids[4:] if token < 128))
    engine = engine_for(FIXED, oracle(engine_for))
    engine.add_request("a", list(PROMPTS[0].encode()), asked(stop=[stop]))
    tokens, done = [], None
    while done is None:
        for output in engine.step():
            tokens += output.tokens
            done = output.finished
    assert [token.logprobs for token in tokens] == list(done.outputs[0].logprobs or ())
    assert len(tokens) == len(done.token_ids) < 24


def test_by_hand():
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], dtype=np.float32))
    entry = raw_logprobs(logits, 3, 3)
    assert entry.logprob == pytest.approx(math.log(0.125), abs=1e-6)
    assert [token for token, _ in entry.top] == [0, 1, 2]
    assert entry.rank == 3  # as probable as the token before it
    law = Warper(SamplingParams(temperature=0.5, top_k=2)).law(logits)
    assert processed_logprobs(law, 1, 5).logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert processed_logprobs(law, 1, 5).rank == 2
    assert processed_logprobs(law, 2, 0).logprob == -math.inf
    assert processed_logprobs(law, 2, 0).rank == 3
    greedy = Warper(SamplingParams(temperature=0, logit_bias={0: -100})).law(logits)
    assert processed_logprobs(greedy, 1, 1).logprob == pytest.approx(math.log(0.5), abs=1e-6)
