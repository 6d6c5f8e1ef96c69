"""What an engine counts, and how a scraper reads it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.engine.loop.live import LiveSample
from paceline.engine.metrics import SECONDS, Histogram
from paceline.engine.prometheus import MEANINGS, prometheus_text
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all

LENIENT = {"lenient": {"lenience": 0.01}, "lenient_greedy": {"lenience": 0.01}}


@pytest.fixture
def served(engine_for):
    engine = engine_for({"method": "ngram", "policy": "fixed", "num_draft_tokens": 4})
    return engine, run_all(engine, params=SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))


def test_counters_are_the_sums_of_the_requests(served):
    engine, outputs = served
    metrics, stats = engine.metrics, [output.stats for output in outputs]
    assert metrics.prompt_tokens == sum(map(len, PROMPTS))
    assert metrics.generation_tokens == sum(len(output.token_ids) for output in outputs)
    assert metrics.spec_decode_num_drafts == sum(each.num_drafts for each in stats) > 0
    assert metrics.spec_decode_num_draft_tokens == sum(each.num_draft_tokens for each in stats)
    assert metrics.spec_decode_num_accepted_tokens == sum(each.num_accepted_tokens for each in stats) > 0
    assert sum(metrics.spec_decode_num_accepted_tokens_per_pos) == metrics.spec_decode_num_accepted_tokens
    assert metrics.rows["draft"] == metrics.spec_decode_num_draft_tokens
    assert metrics.rows["prefill"] == metrics.prompt_tokens
    assert metrics.finished == {"length": 4}


def test_every_token_behind_the_first_belongs_to_a_gap(engine_for):
    engine = engine_for()
    outputs = run_all(engine)
    gaps = engine.metrics.inter_token_latency_seconds
    assert sum(gaps.counts) == sum(len(output.token_ids) - 1 for output in outputs)
    assert sum(engine.metrics.time_to_first_token_seconds.counts) == len(outputs)
    assert engine.metrics.e2e_request_latency_seconds.sum == pytest.approx(
        sum(output.metrics.total_seconds for output in outputs)
    )


@pytest.mark.parametrize("how", ["abort", "error"])
def test_a_request_that_does_not_reach_its_end_leaves_no_time_behind(engine_for, how, monkeypatch):
    engine = engine_for()
    for number in range(3):
        engine.add_request("same", [1, 2, 3], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
        engine.step()
        if how == "error":
            with monkeypatch.context() as patch:
                patch.setattr(LiveSample, "commit", lambda *_: 1 / 0)
                engine.step()
        else:
            engine.abort("same")
        assert engine.metrics.finished[how] == number + 1
        assert not engine.metrics._last_token_times
    assert sum(engine.metrics.inter_token_latency_seconds.counts) == 3 * (how == "error")


def test_a_value_on_a_bound_belongs_below_it():
    histogram = Histogram()
    histogram.observe(SECONDS[1], count=2)
    histogram.observe(1e9)
    assert histogram.counts[1] == 2
    assert histogram.counts[-1] == 1


def test_the_record_is_json_and_the_books_are_empty_again(served):
    engine, _ = served
    record = json.loads(json.dumps(engine.metrics.record()))
    assert record["num_requests_running"] == record["num_requests_waiting"] == record["kv_cache_usage_perc"] == 0
    assert record["prefix_cache_queries"] == sum(map(len, PROMPTS))
    assert not engine.metrics._last_token_times


def test_a_scraper_reads_the_same_numbers(served):
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    engine, _ = served
    text = prometheus_text(engine.metrics, "tiny").decode()
    samples = {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "model_name")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    metrics = engine.metrics
    assert samples["paceline:generation_tokens_total",] == metrics.generation_tokens
    assert samples["paceline:spec_decode_num_accepted_tokens_total",] == metrics.spec_decode_num_accepted_tokens
    per_position = metrics.spec_decode_num_accepted_tokens_per_pos
    for position, count in enumerate(per_position):
        assert samples["paceline:spec_decode_num_accepted_tokens_per_pos_total", str(position)] == count
    assert samples["paceline:request_success_total", "length"] == 4
    assert samples["paceline:e2e_request_latency_seconds_bucket", "+Inf"] == 4
    assert samples["paceline:e2e_request_latency_seconds_count",] == 4
    assert samples["paceline:num_requests_running",] == 0


@pytest.mark.parametrize(
    ("rule", "temperature", "lossy"),
    [("lenient", 0, True), ("lenient_greedy", 0, True), ("typical", 0, False), ("uniform_coin", 0, False),
     ("lenient", 1, True), ("typical", 1, True), ("uniform_coin", 1, True), ("p/q", 1, False), ("p/q", 0, False)],
)  # fmt: skip
def test_lossy_outputs_say_so_and_are_counted(engine_for, rule, temperature, lossy):
    draft = {"method": "draft_model", "model": "random-1", "policy": "fixed", "num_draft_tokens": 3, "rule": rule}
    engine, plain = engine_for(draft | {"rule_options": LENIENT.get(rule, {})}), engine_for()
    params = SamplingParams(temperature=temperature, max_tokens=20, seed=1, ignore_eos=True)
    outputs = run_all(engine, params=params)
    assert [output.lossy for output in outputs] == [lossy] * len(outputs)
    assert engine.metrics.record()["num_lossy_requests"] == lossy * len(outputs)
    number = f'paceline:num_lossy_requests_total{{model_name="m"}} {float(lossy * len(outputs))}'
    assert number in prometheus_text(engine.metrics, "m").decode()
    if temperature == 0:
        same = [a.token_ids == b.token_ids for a, b in zip(outputs, run_all(plain, params=params), strict=True)]
        assert all(same) != lossy


@pytest.mark.parametrize(("rule", "lossy"), [("lenient", False), ("p/q", False), ("typical", True), ("top_k", True)])
def test_rules_that_draw_nothing_are_lossy_without_drafts_too(engine_for, rule, lossy):
    engine = engine_for({"method": "ngram", "rule": rule})
    [output] = run_all(engine, ["x"], SamplingParams(temperature=1, max_tokens=1, seed=1))
    assert output.lossy == lossy and not output.stats.num_drafts
    [greedy] = run_all(engine, ["x"], SamplingParams(temperature=0, max_tokens=1))
    assert not greedy.lossy


@pytest.mark.parametrize("wish", [False, {"method": "none"}])
@pytest.mark.parametrize("rule", ["typical", "top_k", "lenient", "p/q"])
def test_a_request_for_plain_decoding_gets_it_under_every_rule(engine_for, rule, wish):
    draft = {"method": "draft_model", "model": "random-1", "policy": "fixed", "rule": rule}
    params = SamplingParams(temperature=1.5, max_tokens=12, seed=3, ignore_eos=True)
    ours = run_all(engine_for(draft), params=replace(params, speculative=wish))
    theirs = run_all(engine_for(), params=params)
    assert [one.token_ids for one in ours] == [one.token_ids for one in theirs]
    assert not any(one.lossy or one.stats.num_drafts for one in ours)


def test_help_lines_say_what_the_documentation_says(engine_for):
    pytest.importorskip("prometheus_client")
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)(?:{\w+})?` \| (\w+) \| (.*) \|$", page, re.MULTILINE)
    text = prometheus_text(engine_for().metrics, "m").decode()
    kinds = {name.removesuffix("_total"): kind for name, kind in re.findall(r"# TYPE paceline:(\w+) (\w+)", text)}
    told = {name.removesuffix("_total"): line for name, line in re.findall(r"# HELP paceline:(\w+) (.*)", text)}
    assert {name: meaning for name, _, meaning in rows} == MEANINGS
    assert kinds == {name.removesuffix("_total"): kind for name, kind, _ in rows}
    for name, _, meaning in rows:
        assert told[name.removesuffix("_total")] == f"{meaning[0].upper()}{meaning[1:]}."
