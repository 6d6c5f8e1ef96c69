"""Under load every request says what it says alone: arrivals, cancellations, preemptions, n samples, any drafter."""

import dataclasses
from functools import cache

import pytest

from paceline import LLM
from paceline.config import EngineConfig
from paceline.engine.setup.build import build_engine
from paceline.evaluation.load import differences, make_load, run_alone, run_together
from paceline.models.base import PAGE_SIZE
from paceline.speculation import DrafterTraits
from tests.engine.conftest import PROMPTS
from tests.fakes import Babbler


class Chains(Babbler):
    """Babbler's proposals are chains, which block verification takes; it does not say so itself."""

    traits = DrafterTraits()


PAGE_BYTES = 2 * 3 * 2 * 16 * PAGE_SIZE * 4
TIGHT = {"kv_cache_memory_bytes": 14 * PAGE_BYTES, "max_model_len": 6 * PAGE_SIZE, "max_num_batched_tokens": 40}
DRAFTS = {
    "plain": {"method": "plain", "num_draft_tokens": 0},
    "ngram": {"method": "ngram"},
    "suffix": {"method": "suffix"},
    "draft_model": {"method": "draft_model", "model": "random-1", "num_draft_tokens": 3},
}
OWN_CACHE = {
    "draft_model": DRAFTS["draft_model"],
    "tree": DRAFTS["draft_model"] | {"num_draft_tokens": 4, "options": {"tree": "sampled", "expansion": [2, 1]}},
    "specinfer": {"method": "specinfer", "options": {"models": ["random-1", "random-0"], "expansion": [1, 1]}},
    "cross_vocabulary": {"method": "cross_vocabulary", "model": "random-1", "num_draft_tokens": 3},
}
NO_CACHE = {
    "ngram": {"method": "ngram", "num_draft_tokens": 3},
    "suffix": {"method": "suffix", "num_draft_tokens": 3, "options": {"max_cached_tokens": 0}},
    "layer_skip": {"method": "layer_skip", "num_draft_tokens": 3},
    "sparse_cache": {"method": "sparse_cache", "num_draft_tokens": 3, "options": {"cache_budget": 48}},
}
BEGINNING = [ord(letter) for letter in "once upon a time there was a cat, a mat, a bat, a rat and a hat."]  # four pages


def load(count: int, greedy: bool):
    return make_load([list(prompt.encode()) for prompt in PROMPTS], count, max_tokens=40, seed=2, greedy=greedy)


@pytest.fixture(scope="module")
def alone(tiny):
    """(number of requests, greedy) -> the requests, and what each says alone without drafts."""

    @cache
    def answers(count, greedy):
        requests = load(count, greedy)
        return requests, list(
            run_alone(build_engine(tiny, EngineConfig(kv_cache_memory_bytes=1 << 22), None), requests)
        )

    return answers


def check(busy, requests, said):
    together = run_together(busy, requests, after_step=lambda _: busy.scheduler.check_integrity())
    assert differences(together, said) == []
    reasons = {completion.finish_reason for output in together for completion in output.outputs}
    assert "abort" in reasons and "length" in reasons
    assert busy.metrics.num_preemptions > 0
    assert busy.scheduler.pool.num_held == 0 and not busy.scheduler.has_work


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("scheduler", ["stall_free", "sarathi"])
def test_greedy_text_under_load_is_plain_text_alone(engine_for, alone, draft, scheduler):
    check(engine_for(draft, scheduler=scheduler, **TIGHT), *alone(45, True))


@pytest.mark.parametrize("policy", ["heuristic", "goodput"])
@pytest.mark.parametrize("draft", ["ngram", "suffix", "draft_model"])
def test_coupled_text_under_load_is_plain_text_alone_whatever_the_policy(engine_for, alone, draft, policy):
    busy = engine_for(DRAFTS[draft] | {"rule": "coupled", "policy": policy}, **TIGHT)
    check(busy, *alone(30, False))


@pytest.mark.parametrize("draft", (OWN_CACHE | NO_CACHE).values(), ids=OWN_CACHE | NO_CACHE)
def test_seeded_text_under_load_is_plain_text_alone(engine_for, alone, draft):
    """The default rule and policy, preemption and shortage: a seed is a wish for plain sampling's text."""
    check(engine_for(draft, **TIGHT), *alone(40, False))


@pytest.mark.parametrize("policy", ["fixed", "auto"])
def test_seeded_text_with_a_draft_model_under_load_is_that_alone(engine_for, policy):
    draft = DRAFTS["draft_model"] | {"policy": policy}
    requests = load(30, greedy=False)
    together = run_together(engine_for(draft), requests)
    assert differences(together, list(run_alone(engine_for(draft), requests))) == []


@pytest.mark.parametrize(
    ("draft", "policy"),
    [
        *((draft, "fixed") for draft in (OWN_CACHE | NO_CACHE).values()),
        *((draft, "auto") for draft in OWN_CACHE.values()),
    ],
)
def test_seeded_text_with_a_shared_beginning_is_that_alone_in_a_cache_that_holds_few(engine_for, draft, policy):
    """The target holds more requests than a draft without shared pages would; nobody is left without a draft."""
    draft = draft | {"policy": policy}
    prompts = [[*BEGINNING, *prompt.encode()[:12]] for prompt in PROMPTS]
    requests = make_load(prompts, 30, max_tokens=18, seed=2)
    busy = engine_for(draft, **TIGHT)
    together = run_together(busy, requests, after_step=lambda _: busy.scheduler.check_integrity())
    assert differences(together, list(run_alone(engine_for(draft, **TIGHT), requests))) == []
    assert busy.scheduler.pool.num_held == 0


def test_a_text_that_differs_is_found(engine_for):
    requests = load(6, greedy=True)
    alone = list(run_alone(engine_for(), requests))
    damaged = dataclasses.replace(alone[2].outputs[0], token_ids=(1, *alone[2].outputs[0].token_ids))
    wrong = [*alone[:2], dataclasses.replace(alone[2], outputs=(damaged,)), *alone[3:]]
    assert differences(alone, alone) == []
    assert differences(wrong, alone) == [(2, 0)]


@pytest.mark.weights
def test_the_default_model_under_load():
    """Greedy and sampled requests among each other."""
    size = 10 * PAGE_SIZE * 2 * 30 * 3 * 64 * 2
    plain = LLM("smollm2-135m", speculative=None, kv_cache_memory_bytes=size, max_model_len=128)
    texts = ["List three rivers of Europe.", "def add(a, b):", "Say seagull, seagull, seagull", "Why is the sky blue?"]
    prompts = [plain.chat_prompt([{"role": "user", "content": text}]) for text in texts]
    halves = [make_load(prompts, 12, max_tokens=16, seed=4, greedy=greedy) for greedy in (True, False)]
    requests = [request for both in zip(*halves, strict=True) for request in both]
    busy = plain.drafting_with("ngram").engine
    together = run_together(busy, requests)
    assert differences(together, list(run_alone(plain.engine, requests))) == []
    assert busy.metrics.num_preemptions > 0
