"""Drafters that work inside the target: their text is the plain text, alone, in company and at every draft length."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.speculation import DrafterTraits
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all
from tests.fakes import Quiet

LONG_PROMPTS = [prompt * 6 for prompt in PROMPTS]
GREEDY = SamplingParams(temperature=0, max_tokens=40)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=11, max_tokens=40)
DRAFTERS = {
    "jacobi": {"method": "jacobi"},
    "lookahead": {"method": "lookahead"},
    "lookahead with little room": {"method": "lookahead", "num_draft_tokens": 5},
    "layer skip": {"method": "layer_skip", "num_draft_tokens": 3, "policy": "fixed"},
    "early exit": {"method": "layer_skip", "num_draft_tokens": 3, "options": {"exit_layer": 2}},
    "few tokens": {"method": "sparse_cache", "num_draft_tokens": 3, "options": {"draft_vocab_size": 100}},
    "sparse cache": {"method": "sparse_cache", "num_draft_tokens": 3, "options": {"cache_budget": 48}},
    "snapkv": {
        "method": "sparse_cache", "num_draft_tokens": 3, "policy": "fixed",
        "options": {"cache_budget": 48, "selection": "snapkv", "observation_window": 5, "rescore_interval": 9},
    },
}  # fmt: skip
every_drafter = pytest.mark.parametrize("draft", DRAFTERS.values(), ids=DRAFTERS.keys())


def texts(outputs):
    return [output.token_ids for output in outputs]


@every_drafter
def test_greedy_text_is_plain_greedy_text(engine_for, plain_answers, draft):
    for prompts in (PROMPTS, LONG_PROMPTS):
        assert texts(run_all(engine_for(draft), prompts)) == texts(plain_answers(prompts))


@every_drafter
def test_coupled_sampling_says_what_plain_sampling_says(engine_for, plain_answers, draft):
    plain = plain_answers(params=SAMPLED)
    assert texts(run_all(engine_for(draft | {"rule": "coupled"}), params=SAMPLED)) == texts(plain)


@every_drafter
def test_a_seeded_request_says_the_same_alone_and_in_company(engine_for, draft):
    together = run_all(engine_for(draft), LONG_PROMPTS, SAMPLED)
    alone = [run_all(engine_for(draft), [prompt], SAMPLED)[0] for prompt in LONG_PROMPTS]
    assert texts(together) == texts(alone)


@every_drafter
def test_greedy_and_sampled_requests_share_steps_and_memory_may_run_out(engine_for, plain_answers, draft):
    params = [GREEDY, SAMPLED, SamplingParams(temperature=0, max_tokens=70), SAMPLED]
    draft = draft | {"rule": "coupled"}
    page_bytes = 2 * 3 * 2 * 16 * 16 * 4
    engine = engine_for(draft, kv_cache_memory_bytes=11 * page_bytes, max_model_len=11 * 16, max_num_batched_tokens=24)
    assert texts(run_all(engine, params=params)) == texts(plain_answers(params=params))
    engine.scheduler.check_integrity()


class Watcher(Quiet):
    """Proposes a tree and checks what it is told about it."""

    traits = DrafterTraits(branches=True, watches=True)

    def __init__(self):
        self.seen = []

    def propose(self, contexts):
        from paceline.sampling import TokenTree

        return [TokenTree((7, 8, 9), (-1, -1, 0)).prune(context.budget) for context in contexts]

    def observe(self, outcome):
        if outcome.picks is not None:
            self.seen.append((outcome.request_id, outcome.tokens, outcome.picks.copy()))


def test_a_watching_drafter_is_told_the_targets_pick_below_every_node(engine_for, tiny):
    from paceline.models.rows import Part, build_rows

    watcher = Watcher()
    engine = engine_for({"method": "plain", "num_draft_tokens": 3, "policy": "fixed"}, watcher)
    [output] = run_all(engine, [PROMPTS[0]], SamplingParams(temperature=0, max_tokens=6))
    text = [*output.prompt_token_ids, *output.token_ids]
    length = len(output.prompt_token_ids)
    for request_id, tokens, picks in watcher.seen:
        assert request_id == "0"
        assert len(picks) == len(tokens) + 1
        assert picks[0] == text[length + 1]
        logits = tiny.model.forward(build_rows([Part(range(8), 0, [*text[: length + 1], 7])]), tiny.model.new_cache(8))
        assert picks[1] == np.argmax(logits.logits[-1])
        length += 1
    assert len(watcher.seen) == 4  # the last token needs no draft


def test_drafters_that_do_not_watch_are_not_told(engine_for):
    watcher = Watcher()
    watcher.traits = DrafterTraits(branches=True)
    run_all(engine_for({"method": "plain", "num_draft_tokens": 3, "policy": "fixed"}, watcher), [PROMPTS[0]])
    assert watcher.seen == []


def test_a_drafters_own_budget_holds_until_the_user_names_one(engine_for):
    assert engine_for({"method": "lookahead"}).speculation.num_draft_tokens == 30
    assert engine_for({"method": "lookahead", "num_draft_tokens": 6}).speculation.num_draft_tokens == 6
    assert engine_for({"method": "ngram"}).speculation.num_draft_tokens == 8


@pytest.mark.parametrize("method", ["sparse_cache", "layer_skip"])
def test_full_attention_with_all_layers_drafts_the_targets_own_tokens(engine_for, method, monkeypatch):
    monkeypatch.setattr(
        "paceline.drafters.self_drafts.layer_skip.kept_layers", lambda skipped, num_layers: range(num_layers)
    )
    for rule, params in (("p/q", GREEDY), ("coupled", SAMPLED)):
        draft = {"method": method, "num_draft_tokens": 4, "policy": "fixed", "rule": rule}
        for output in run_all(engine_for(draft), params=replace(params, ignore_eos=True)):
            assert output.stats.num_rejected_tokens == 0
            assert output.stats.num_accepted_tokens == output.stats.num_draft_tokens > 0


def test_a_budget_below_the_context_leaves_keys_out(engine_for):
    prompt = [PROMPTS[0] * 8]
    rates = []
    for budget in (48, 512):
        draft = {"method": "sparse_cache", "num_draft_tokens": 3, "policy": "fixed"}
        [output] = run_all(engine_for(draft | {"options": {"cache_budget": budget}}), prompt)
        rates.append(output.stats.num_rejected_tokens)
    assert rates[0] > rates[1] == 0


@pytest.mark.parametrize(
    ("method", "options", "field"),
    [
        ("layer_skip", {"skip_layers": []}, "skip_layers"),
        ("layer_skip", {"skip_layers": [0, 1, 2]}, "skip_layers"),
        ("layer_skip", {"skip_layers": [3]}, "skip_layers"),
        ("layer_skip", {"skip_layers": 2}, "skip_layers"),
        ("layer_skip", {"exit_layer": 3}, "exit_layer"),
        ("layer_skip", {"exit_layer": 0}, "exit_layer"),
        ("layer_skip", {"exit_layer": 1, "skip_layers": [1]}, "exit_layer"),
        ("sparse_cache", {"cache_budget": 47}, "cache_budget"),
        ("sparse_cache", {"num_sink_tokens": -1}, "num_sink_tokens"),
        ("sparse_cache", {"selection": "best"}, "selection"),
        ("sparse_cache", {"observation_window": 0}, "observation_window"),
        ("sparse_cache", {"observation_window": 600}, "observation_window"),
        ("sparse_cache", {"rescore_interval": 0}, "rescore_interval"),
        ("lookahead", {"window_size": 0}, "window_size"),
    ],
)
def test_options_that_make_no_draft_are_refused(engine_for, method, options, field):
    with pytest.raises(InvalidParameter, match=field):
        engine_for({"method": method, "options": options})
