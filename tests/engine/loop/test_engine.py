"""The engine: whatever is drafted, batched, chunked or preempted, a request says what it says alone and undrafted."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.base import PAGE_SIZE
from paceline.models.rows import Part, build_rows
from paceline.sampling import TokenTree
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all
from tests.fakes import Babbler, Oracle, Quiet

GREEDY = SamplingParams(temperature=0, max_tokens=40)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=11, max_tokens=40)
DRAFTERS = [
    {"method": "ngram"},
    {"method": "suffix"},
    {"method": "suffix", "options": {"scoring": "published"}},
    {"method": "draft_model", "model": "random-0"},
    {"method": "draft_model", "model": "random-1", "num_draft_tokens": 3},
    {"method": "draft_model", "model": "random-0", "options": {"tree": "static", "expansion": [2, 2, 1]}},
    {"method": "draft_model", "model": "random-1", "options": {"tree": "static", "paths": [[0], [0, 0], [1]]}},
    {"method": "draft_model", "model": "random-0", "options": {"tree": "dynamic", "topk": 3, "depth": 4}},
    {"method": "draft_model", "model": "random-1", "options": {"tree": "dynamic", "topk": 2}},
    {"method": "draft_model", "model": "random-0", "options": {"tree": "sampled"}},
    {"method": "draft_model", "model": "random-0", "options": {"tree": "sampled", "replacement": True}},
    {"method": "draft_model", "model": "random-0", "options": {"draft_vocab_size": 110}},
    {"method": "draft_model", "model": "random-1", "options": {"draft_vocab_size": 100, "tree": "sampled"}},
    {"method": "specinfer", "options": {"models": ["random-0", "random-1"]}},
    {"method": "specinfer", "options": {"models": ["random-1", "random-0"], "expansion": [[2, 1], [1, 2]]}},
]


def name_of(draft):
    return " ".join([draft["method"], draft.get("model", ""), *map(str, draft.get("options", {}).values())])


def texts(outputs):
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("policy", ["fixed", "heuristic", "goodput", "auto"])
@pytest.mark.parametrize("draft", DRAFTERS, ids=name_of)
def test_greedy_text_is_plain_greedy_text(engine_for, plain_answers, draft, policy):
    plain = plain_answers()
    drafted = run_all(engine_for(draft | {"policy": policy}))
    assert texts(drafted) == texts(plain)
    assert [o.text for o in drafted] == [o.text for o in plain]


@pytest.mark.parametrize("policy", ["fixed", "goodput"])
@pytest.mark.parametrize("draft", DRAFTERS, ids=name_of)
@pytest.mark.parametrize("rule", ["auto", "coupled"])
def test_with_a_seed_the_text_is_plain_samplings(engine_for, plain_answers, draft, policy, rule):
    plain = plain_answers(params=SAMPLED)
    drafted = run_all(engine_for(draft | {"rule": rule, "policy": policy}), params=SAMPLED)
    assert texts(drafted) == texts(plain)
    assert texts(plain) != texts(plain_answers())  # it was not greedy after all


@pytest.mark.parametrize("rule", ["auto", "coupled", "sample_and_match"])
@pytest.mark.parametrize(
    "draft", [d for d in DRAFTERS if d.get("options", {}).keys() & {"tree", "models"}], ids=name_of
)
def test_a_seeded_request_with_a_tree_says_the_same_alone_and_in_company(engine_for, draft, rule):
    draft = draft | {"rule": rule, "policy": "fixed"}
    together = run_all(engine_for(draft), params=SAMPLED)
    assert texts(together[2:3]) == texts(run_all(engine_for(draft), PROMPTS[2:3], SAMPLED))


@pytest.mark.parametrize("options", [{}, {"tree": "dynamic"}, {"tree": "sampled"}], ids=str)
def test_rejection_sampling_accepts_all_of_the_target_itself_and_keeps_greedy_texts(engine_for, options):
    """Where q = p, M = 1. A chosen node is accepted only where the target's law is one-hot too."""
    draft = {"method": "draft_model", "model": "random-0", "rule": "rejection_sampling", "policy": "fixed"}
    engine = draft | {"num_draft_tokens": 3, "options": options}
    greedy = run_all(engine_for(engine), params=GREEDY)
    assert texts(greedy) == texts(run_all(engine_for(), params=GREEDY))
    assert all(output.stats.acceptance_length > 1.5 for output in greedy)
    if options.get("tree") != "dynamic":
        drawn = [output.stats for output in run_all(engine_for(engine), params=SAMPLED)]
        assert sum(stats.num_accepted_tokens for stats in drawn) > 0
        assert sum(stats.num_rejected_tokens for stats in drawn) == 0


def test_greedy_and_sampled_requests_share_a_tree_drafter(engine_for):
    """Each says what it says alone, and every tree is accepted whole in places: the draft is the target itself."""
    draft = {"method": "draft_model", "model": "random-0", "policy": "fixed", "options": {"tree": "dynamic"}}
    mixed = [GREEDY, SAMPLED, GREEDY, SAMPLED]
    outputs = run_all(engine_for(draft), params=mixed)
    for prompt, params, output in zip(PROMPTS, mixed, outputs, strict=True):
        assert output.token_ids == run_all(engine_for(draft), [prompt], params)[0].token_ids
    greedy = [output for output, params in zip(outputs, mixed, strict=True) if params is GREEDY]
    assert texts(greedy) == texts(run_all(engine_for()))[::2]
    assert all(output.stats.acceptance_length > 2 for output in greedy)


@pytest.mark.parametrize("rule", ["auto", "coupled", "sample_and_match"])
def test_a_seeded_request_says_the_same_alone_and_in_company(engine_for, rule):
    draft = {"method": "draft_model", "model": "random-1", "rule": rule, "num_draft_tokens": 3, "policy": "fixed"}
    together = run_all(engine_for(draft), params=SAMPLED)
    alone = [run_all(engine_for(draft), [prompt], SAMPLED)[0] for prompt in PROMPTS]
    assert texts(together) == texts(alone)


def test_a_draft_of_common_tokens_proposes_no_others(engine_for):
    draft = {"method": "draft_model", "model": "random-0", "policy": "fixed", "num_draft_tokens": 3}
    answers = run_all(engine_for(draft))
    few = sorted(token for output in answers for token in output.token_ids)[len(answers) * 20]  # the median
    fewer = run_all(engine_for(draft | {"options": {"draft_vocab_size": few}}))
    assert texts(fewer) == texts(answers)
    drafted = [
        token for output in fewer for token, kind in zip(output.token_ids, output.provenance, strict=True)
        if kind == "drafted"
    ]  # fmt: skip
    assert drafted
    assert max(drafted) < few


@pytest.mark.parametrize(
    ("scheduler", "rows"),
    [("stall_free", 3), ("stall_free", 16), ("stall_free", 512), ("orca", 512), ("sarathi", 64), ("request_level", 64)],
)
def test_chunks_and_schedulers_change_nothing(engine_for, scheduler, rows):
    draft = {"method": "ngram", "policy": "fixed"}
    outputs = run_all(engine_for(draft, max_num_batched_tokens=rows, scheduler=scheduler))
    assert texts(outputs) == texts(run_all(engine_for()))


def test_preemption_changes_nothing(engine_for):
    page_bytes = 2 * 3 * 2 * 16 * PAGE_SIZE * 4
    engine = engine_for({"method": "ngram"}, kv_cache_memory_bytes=9 * page_bytes, max_model_len=9 * PAGE_SIZE)
    params = SamplingParams(temperature=0, max_tokens=70)
    outputs = run_all(engine, params=params)
    assert texts(outputs) == texts(run_all(engine_for(), params=params))
    assert engine.metrics.num_preemptions > 0


def test_branches_are_accepted_and_the_cache_is_that_of_a_fresh_prefill(engine_for, tiny):
    plain = run_all(engine_for())
    answers = {o.prompt_token_ids: [*o.prompt_token_ids, *o.token_ids] for o in plain}
    engine = engine_for({"method": "plain", "num_draft_tokens": 6, "policy": "fixed"}, Oracle(answers))
    outputs = run_all(engine)
    assert texts(outputs) == texts(plain)
    assert all(o.stats.acceptance_length > 2 for o in outputs)

    engine.add_request("checked", list(PROMPTS[0].encode()), SamplingParams(temperature=0, max_tokens=40))
    for _ in range(5):
        engine.step()
        if not engine.has_unfinished_requests:
            break
        state = engine.state_of("checked")
        slots = [state.page_table[i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE for i in range(state.num_computed)]
        fresh = tiny.model.new_cache(16)
        tokens = state.token_ids[: state.num_computed]
        tiny.model.forward(build_rows([Part(range(16), 0, tokens, logits="none")]), fresh)
        for ours, theirs in zip(engine.cache.read(slots), fresh.read(range(len(tokens))), strict=True):
            assert np.array_equal(ours, theirs)


def test_provenance_and_counters_add_up(engine_for):
    for output in run_all(engine_for({"method": "ngram", "policy": "fixed"})):
        stats, kinds = output.stats, output.provenance
        assert len(kinds) == len(output.token_ids)
        assert kinds.count("drafted") == stats.num_accepted_tokens
        assert sum((i + 1) * n for i, n in enumerate(stats.accepted_per_pass)) == len(output.token_ids) - 1
        assert stats.num_target_passes == sum(stats.accepted_per_pass)
        assert stats.num_draft_tokens >= stats.num_accepted_tokens
        assert kinds[0] == "target"


def test_nonsense_drafts_cost_nothing_but_time(engine_for):
    draft = {"method": "plain", "num_draft_tokens": 3, "policy": "fixed"}
    outputs = run_all(engine_for(draft, Babbler()))
    assert texts(outputs) == texts(run_all(engine_for()))
    assert all(o.stats.num_rejected_tokens > 0 for o in outputs)


class Silent(Quiet):
    def propose(self, contexts):
        return [TokenTree()] * len(contexts)


@pytest.mark.parametrize("knows", [True, False], ids=["drafts", "no drafts"])
def test_drafts_and_a_long_prompt_fill_a_step_together(engine_for, knows):
    """Of 16 rows a step a prompt leaves 6 for a draft, a tree of 4 or 5 nodes, and gets those that are not used."""
    prompts = [list(b"They say that"), [1 + i % 120 for i in range(200)]]
    params = [SamplingParams(temperature=0, max_tokens=60), SamplingParams(temperature=0, max_tokens=4)]
    plain = run_all(engine_for(max_num_batched_tokens=16), prompts, params)
    answers = {o.prompt_token_ids: [*o.prompt_token_ids, *o.token_ids] for o in plain}
    draft = {"method": "plain", "num_draft_tokens": 6, "policy": "fixed"}
    engine = engine_for(draft, Oracle(answers) if knows else Silent(), max_num_batched_tokens=16)
    engine.scheduler.config = replace(engine.scheduler.config, balanced_context=inf)  # attention takes no rows
    steps, learn = [], engine.prices.observe
    engine.prices.observe = lambda step: (steps.append(step), learn(step))
    assert texts(run_all(engine, prompts, params)) == texts(plain)
    beside = [one for one in steps if one.num_decodes and one.num_prefill_rows][:-1]
    assert len(beside) >= 10 and any(one.num_draft_tokens for one in beside) == knows
    for one in beside:
        assert one.num_prefill_rows + one.num_decodes + one.num_draft_tokens == 16
        assert one.num_prefill_rows == one.prompt_rows


def test_a_stop_inside_an_accepted_draft_leaks_nothing(engine_for):
    plain = run_all(engine_for())
    answers = {o.prompt_token_ids: [*o.prompt_token_ids, *o.token_ids] for o in plain}
    stops = [SamplingParams(temperature=0, max_tokens=40, stop_token_ids=[o.token_ids[7]]) for o in plain]
    draft = {"method": "plain", "num_draft_tokens": 6, "policy": "fixed"}
    for before, output in zip(plain, run_all(engine_for(draft, Oracle(answers)), params=stops), strict=True):
        end = before.token_ids.index(before.token_ids[7]) + 1
        assert output.token_ids == before.token_ids[:end]
        assert output.finish_reason == "stop"
        assert len(output.provenance) == end
        assert output.stats.num_accepted_tokens == output.provenance.count("drafted")


def test_a_stop_string_within_min_tokens_is_text(engine_for):
    [plain] = run_all(engine_for(), PROMPTS[:1], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, stop=[plain.text[2:4]], min_tokens=12)
    for draft in (None, "ngram"):
        [output] = run_all(engine_for(draft), PROMPTS[:1], params)
        assert (output.text, output.token_ids, output.finish_reason) == (plain.text, plain.token_ids, "length")


def test_a_stop_string_ends_the_text_before_it(engine_for):
    plain = run_all(engine_for())
    for index, before in enumerate(plain):
        visible = before.text
        if len(visible) < 12:
            continue
        stop = visible[6:9]
        params = SamplingParams(temperature=0, max_tokens=40, stop=[stop])
        for draft in (None, {"method": "ngram"}):
            output = run_all(engine_for(draft), [PROMPTS[index]], params)[0]
            assert output.text == visible[: visible.index(stop)]
            assert output.finish_reason == "stop"


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_max_tokens_is_kept_exactly(engine_for, max_tokens):
    for output in run_all(engine_for({"method": "ngram"}), params=SamplingParams(temperature=0, max_tokens=max_tokens)):
        assert len(output.token_ids) == max_tokens
        assert output.finish_reason == "length"


def test_processors_see_the_path_down_to_each_node(engine_for):
    params = SamplingParams(
        temperature=0, max_tokens=40, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2,
        logit_bias={5: 2.0, 9: -3.0}, bad_words=["ab"], min_tokens=10,
    )  # fmt: skip
    plain = run_all(engine_for(), params=params)
    assert texts(plain) != texts(run_all(engine_for()))
    for draft in DRAFTERS:
        assert texts(run_all(engine_for(draft), params=params)) == texts(plain)


def test_abort_returns_what_was_said_and_frees_everything(engine_for):
    engine = engine_for({"method": "draft_model", "model": "random-1"})
    engine.add_request("a", [1, 2, 3], GREEDY)
    for _ in range(3):
        engine.step()
    output = engine.abort("a")
    assert output.finish_reason == "abort"
    assert output.token_ids
    assert not engine.has_unfinished_requests
    assert engine.abort("a") is None
    engine.scheduler.check_integrity()


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], GREEDY, "prompt_token_ids.*empty"),
        (list(range(100)) * 6, GREEDY, "prompt_token_ids.*shorten"),
        ([1, 5000], GREEDY, "prompt_token_ids.*5000"),
        ([5.5], GREEDY, r"prompt_token_ids.*5\.5"),
        ([True], GREEDY, "prompt_token_ids.*True"),
        (["a"], GREEDY, "prompt_token_ids.*'a'"),
        ([1], SamplingParams(logit_bias={999: 1.0}), "logit_bias"),
    ],
)
def test_bad_requests_are_refused_at_the_door(engine_for, prompt, params, message):
    engine = engine_for()
    with pytest.raises(InvalidParameter, match=message):
        engine.add_request("bad", prompt, params)
    assert not engine.has_unfinished_requests


def test_an_id_in_use_is_refused_and_the_first_request_lives(engine_for):
    engine = engine_for()
    engine.add_request("a", [1], GREEDY)
    with pytest.raises(InvalidParameter, match="request_id"):
        engine.add_request("a", [2], GREEDY)
    assert engine.has_unfinished_requests


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ({"method": "psychic"}, "psychic"),
        ({"method": "ngram", "num_draft_tokens": -1}, "num_draft_tokens"),
        ({"method": "ngram", "rule": "guess"}, "rule"),
        ({"method": "ngram", "policy": "guess"}, "policy"),
        ({"method": "ngram", "lenght": 3}, "lenght"),
        ({"method": "ngram", "options": {"colour": 1}}, "colour"),
        ({"method": "draft_model"}, "model"),
        ({"method": "draft_model", "model": "random-1", "options": {"tree": "oak"}}, "tree"),
        ({"method": "draft_model", "model": "random-1", "rule": "block", "options": {"tree": "dynamic"}}, "rule"),
        ({"method": "specinfer", "options": {"models": []}}, "models"),
        ({"method": "specinfer", "options": {"models": "random-1"}}, "models"),
        ({"method": "specinfer", "options": {"models": ["random-1"], "dtypes": ["int8", "int8"]}}, "dtypes"),
        ({"method": "specinfer", "options": {"models": ["random-1"], "expansion": [[1], [1]]}}, "expansion"),
        ({"method": "specinfer", "options": {"models": ["random-1"]}, "rule": "block"}, "rule"),
        ({"method": "suffix", "options": {"mode": "tree"}, "rule": "block"}, "rule"),
        ({"num_draft_tokens": 3}, "method"),
    ],
)
def test_bad_drafting_options_name_their_field(engine_for, draft, message):
    with pytest.raises(InvalidParameter, match=message):
        engine_for(draft)


def test_a_draft_model_with_another_vocabulary_is_refused(engine_for, monkeypatch):
    monkeypatch.setattr("tests.fakes.ByteTokenizer.same_vocabulary", lambda self, other: False)
    with pytest.raises(UnsupportedModel, match=r"another vocabulary.*same family"):
        engine_for({"method": "draft_model", "model": "random-1"})


@pytest.mark.parametrize(
    ("config", "field"),
    [({"max_model_len": 10_000}, "max_model_len"), ({"kv_cache_memory_bytes": 100}, "kv_cache_memory_bytes"),
     ({"max_num_seqs": 0}, "max_num_seqs"), ({"executor": "abacus"}, "executor")],
)  # fmt: skip
def test_bad_engine_options_name_their_field(engine_for, config, field):
    with pytest.raises(InvalidParameter, match=field):
        engine_for(None, **config)


@pytest.mark.parametrize("how", [{"temperature": 0}, {"temperature": 1, "seed": 5}])
def test_allowed_ids_hold_with_drafts_and_without(engine_for, how):
    params = SamplingParams(max_tokens=40, ignore_eos=True, allowed_token_ids=[97, 98, 99, 32], **how)
    plain = run_all(engine_for(), params=params)
    drafted = run_all(engine_for({"method": "ngram", "policy": "fixed"}), params=params)
    assert [output.token_ids for output in drafted] == [output.token_ids for output in plain]
    assert set().union(*(output.token_ids for output in plain)) <= {97, 98, 99, 32}
    assert any(output.stats.num_accepted_tokens for output in drafted)


def test_a_stop_string_is_kept_where_asked(engine_for):
    [plain] = run_all(engine_for(), PROMPTS[:1], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    text = plain.text.rstrip()
    stop, first = text[5:7], text.index(text[5:7])
    for kept in (False, True):
        params = SamplingParams(temperature=0, max_tokens=40, stop=stop, include_stop_str_in_output=kept)
        [output] = run_all(engine_for({"method": "ngram"}), PROMPTS[:1], params)
        assert output.text == text[: first + 2 * kept] and output.outputs[0].stop_reason == stop
