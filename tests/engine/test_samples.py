"""n samples of one prompt: computed once, each what it is alone; timeouts; times of a request."""

import pytest

from paceline.errors import InvalidParameter
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all

DRAFTS = [None, {"method": "ngram", "policy": "fixed"}, {"method": "draft_model", "model": "random-1"}]


@pytest.mark.parametrize("draft", DRAFTS, ids=str)
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_sample_i_says_what_a_request_with_its_seed_says_alone(engine_for, draft, prefix_caching):
    params = SamplingParams(temperature=0.9, seed=40, max_tokens=20, n=3)
    together = run_all(engine_for(draft, prefix_caching=prefix_caching), params=params)
    for prompt, output in zip(PROMPTS, together, strict=True):
        alone = [run_all(engine_for(draft), [prompt], params.sample(i))[0] for i in range(3)]
        assert [each.token_ids for each in output.outputs] == [each.token_ids for each in alone]
        assert [each.index for each in output.outputs] == [0, 1, 2]
        assert len({each.token_ids for each in output.outputs}) == 3


def test_the_prompt_of_n_samples_is_computed_once(engine_for):
    engine = engine_for(prefix_caching=False)
    output = run_all(engine, [PROMPTS[0]], SamplingParams(temperature=0.9, seed=1, max_tokens=5, n=4))[0]
    assert engine.metrics.rows["prefill"] == len(PROMPTS[0]) + 3
    assert len(output.outputs) == 4
    assert output.text == output.outputs[0].text


def test_samples_survive_preemption(engine_for):
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=60, n=3)
    page_bytes = 2 * 3 * 2 * 16 * 16 * 4
    engine = engine_for({"method": "ngram"}, kv_cache_memory_bytes=9 * page_bytes, max_model_len=9 * 16)
    tight = run_all(engine, PROMPTS[:2], params)
    roomy = run_all(engine_for({"method": "ngram"}), PROMPTS[:2], params)
    assert [[o.token_ids for o in each.outputs] for each in tight] == [
        [o.token_ids for o in each.outputs] for each in roomy
    ]
    assert engine.metrics.num_preemptions > 0
    assert engine.scheduler.pool.num_held == 0


def test_aborting_ends_every_sample(engine_for):
    engine = engine_for()
    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=30, n=2, seed=1))
    for _ in range(4):
        engine.step()
    output = engine.abort("a")
    assert [each.finish_reason for each in output.outputs] == ["abort", "abort"]
    assert all(each.token_ids for each in output.outputs)
    assert not engine.has_unfinished_requests
    engine.scheduler.check_integrity()
    assert engine.scheduler.pool.num_held == 0


def test_n_below_one_and_names_in_use_are_refused(engine_for):
    with pytest.raises(InvalidParameter, match="n"):
        SamplingParams(n=0)
    engine = engine_for()
    engine.add_request("a", [1], SamplingParams(n=2))
    with pytest.raises(InvalidParameter, match="request_id"):
        engine.add_request("a", [1], SamplingParams())
    assert engine.abort("a") is not None
    assert not engine.scheduler.has_work


@pytest.mark.parametrize("names", [("a", "1_a", "1_a'"), ("1_a'", "1_a", "a")], ids=str)
def test_a_name_like_that_of_a_sample_is_a_name_like_any_other(engine_for, names):
    """Whichever comes first; each request says, under the name that the user gave it, what it says alone."""
    wanted = {name: SamplingParams(temperature=0.9, seed=i, max_tokens=6, n=2 if name == "a" else 1)
              for i, name in enumerate(sorted(names))}  # fmt: skip
    together = texts(engine_for({"method": "suffix"}), {name: wanted[name] for name in names})
    assert together == {name: texts(engine_for(), {"alone": wanted[name]})["alone"] for name in names}


def texts(engine, requests):
    """Name to the token ids of each sample, of requests with one prompt that run together."""
    for name, params in requests.items():
        engine.add_request(name, [1, 2, 3], params)
    ended = {}
    while engine.has_unfinished_requests:
        ended |= {each.request_id: each.finished for each in engine.step() if each.finished}
    return {name: [sample.token_ids for sample in output.outputs] for name, output in ended.items()}


def test_a_timeout_ends_a_request_with_what_it_has_said(engine_for):
    now = [0.0]
    engine = engine_for(clock=lambda: now[0])
    engine.add_request("late", [1, 2, 3], SamplingParams(temperature=0, max_tokens=90), timeout=10)
    for _ in range(5):
        engine.step()
    now[0] = 10.0
    [output] = engine.step()
    assert output.finished.finish_reason == "timeout"
    assert len(output.finished.token_ids) == 5
    assert not engine.has_unfinished_requests
    with pytest.raises(InvalidParameter, match="timeout"):
        engine.add_request("never", [1], SamplingParams(), timeout=0)


def test_a_smaller_priority_number_is_served_first(engine_for):
    engine = engine_for(max_num_seqs=1)
    engine.add_request("late", [1, 2], SamplingParams(max_tokens=2), priority=1)
    engine.add_request("early", [1, 2], SamplingParams(max_tokens=2), priority=0)
    done = []
    while engine.has_unfinished_requests:
        done += [output.request_id for output in engine.step() if output.finished]
    assert done == ["early", "late"]


def test_a_draft_model_sees_the_whole_prompt_behind_a_prefix_hit(engine_for):
    draft = {"method": "draft_model", "model": "random-0", "num_draft_tokens": 4, "policy": "fixed"}
    params = SamplingParams(temperature=0, max_tokens=12)
    prompt = "a prompt that is longer than one page of keys and values"
    engine = engine_for(draft)
    first = run_all(engine, [prompt], params)[0]
    again = run_all(engine, [prompt], params)[0]
    assert again.metrics.num_cached_tokens == len(prompt) // 16 * 16
    assert engine.scheduler.prefix_cache_hits == again.metrics.num_cached_tokens
    assert again.token_ids == first.token_ids
    # The draft is the target: with the whole prompt in its cache it is never wrong.
    assert again.stats.acceptance_rate == first.stats.acceptance_rate == 1.0
    assert run_all(engine_for(draft, prefix_caching=False), [prompt] * 2, params)[1].metrics.num_cached_tokens == 0


def test_times_are_in_order(engine_for):
    for output in run_all(engine_for()):
        metrics = output.metrics
        assert 0 <= metrics.queue_seconds < metrics.first_token_seconds < metrics.total_seconds
