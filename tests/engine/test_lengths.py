"""Policies by name in a running engine: same text, options checked at the door, traces to learn from."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.config import SpeculativeConfig
from paceline.engine.setup import load
from paceline.errors import InvalidParameter
from paceline.speculation import DrafterTraits, FixedPrices, make_policy
from paceline.speculation.policies import Cascade, Classifier, Fixed, Goodput, Heuristic
from paceline.speculation.policies.disco import FEATURES
from paceline.training_jobs.draft_traces import collect_traces
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all

DRAFT = {"method": "draft_model", "model": "random-0", "num_draft_tokens": 4}
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    path = tmp_path_factory.mktemp("disco") / "disco.json"
    weights = np.zeros((1, len(FEATURES)))
    weights[0, 0] = 20.0
    mean = [0.5] + [0.0] * (len(FEATURES) - 1)
    Classifier(mean, [1.0] * len(FEATURES), [(weights, np.zeros(1))]).write(path)
    return str(path)


@pytest.mark.parametrize("policy", ["heuristic", "confidence", "disco", "goodput", "cascade"])
@pytest.mark.parametrize("method", [DRAFT, {"method": "ngram"}])
def test_every_policy_says_what_plain_decoding_says(engine_for, plain_answers, classifier, policy, method):
    plain = [output.token_ids for output in plain_answers(params=GREEDY)]
    options = {"classifier": classifier} if policy == "disco" else {}
    engine = engine_for({**method, "policy": policy, "policy_options": options})
    assert [output.token_ids for output in run_all(engine, params=GREEDY)] == plain


def lengths_under(engine_for, policy, **options):
    engine = engine_for({**DRAFT, "policy": policy, "policy_options": options})
    stats = run_all(engine, params=GREEDY)[0].stats
    return stats.num_draft_tokens / stats.num_drafts


def test_greedy_requests_show_how_sure_the_draft_is(engine_for, classifier):
    """At temperature 0 the warped law is a point; a policy that saw it would never stop early."""
    assert lengths_under(engine_for, "confidence", threshold=0.0) > 3
    assert lengths_under(engine_for, "confidence", threshold=1.0) == 1
    assert lengths_under(engine_for, "disco", classifier=classifier, threshold=1.0) == 1


def test_cascade_is_told_of_steps(engine_for):
    engine = engine_for({**DRAFT, "policy": "cascade", "policy_options": {"base_steps": 2}})
    run_all(engine, params=GREEDY)
    policy = engine.speculation.policy.inner
    assert isinstance(policy, Cascade)
    assert policy.phase != "base"


@pytest.mark.parametrize(("method", "whole"), [("ngram", False), ("suffix", True), ("lookahead", True)])
def test_goodput_takes_or_leaves_drafts_that_cannot_be_shortened(engine_for, method, whole):
    for policy in ("auto", "goodput"):
        assert engine_for({"method": method, "policy": policy}).speculation.policy.inner.whole == whole


def test_goodput_takes_or_leaves_trees(engine_for):
    tree = {"tree": "static", "expansion": [2, 1]}
    length = engine_for({**DRAFT, "options": tree, "policy": "goodput"}).speculation.policy.inner
    assert isinstance(length, Goodput) and length.whole


def test_a_hybrid_weighs_the_cost_of_its_models_itself(engine_for):
    engine = engine_for({"method": "hybrid", "model": "random-1", "policy": "goodput"})
    assert engine.drafter.traits.cost_ratio == 1
    assert engine.prices.draft_level(0, 1) == 0


def test_drafts_of_a_model_have_a_price_before_one_was_measured(engine_for):
    engine = engine_for({**DRAFT, "policy": "goodput"})
    assert engine.prices.draft_level(3, 4) == pytest.approx(engine.prices.target(4))


def test_names_and_options():
    prices, lookup = FixedPrices(lambda rows, _: float(rows)), DrafterTraits()

    def make(name, options, most):
        return make_policy(name, options, most, lookup, prices)

    assert make("heuristic", {}, 3) == Heuristic(3, 1, 3)
    assert make("heuristic", {"start": 1}, 9) == Heuristic(1, 1, 9)
    assert make("cascade", {}, 0) == Fixed(0)
    for name, options, word in (
        ("confidence", {"colour": 1}, "threshold"),
        ("fixed", {"colour": 1}, "none"),
        ("disco", {}, "paceline train disco"),
        ("goodput", {"num_draft_tokens": 2}, "explore"),
    ):
        with pytest.raises(InvalidParameter, match=word):
            make(name, options, 4)


def test_an_unknown_policy_is_refused():
    with pytest.raises(InvalidParameter, match="cascade"):
        SpeculativeConfig("ngram", policy="hope")  # type: ignore[arg-type]


def test_traces_hold_each_drafts_fate(engine_for):
    engine = engine_for({"method": "draft_model", "model": "random-1", "num_draft_tokens": 4, "policy": "fixed"})
    drafter, told = engine.drafter, []
    ids = [list(prompt.encode()) for prompt in PROMPTS]
    traces = collect_traces(engine, ids, GREEDY, lambda done, total: told.append((done, total)))
    assert told[-1] == (len(PROMPTS), len(PROMPTS))
    assert engine.drafter is drafter
    assert {trace.group for trace in traces} == set(range(len(PROMPTS)))
    assert all(trace.features.shape == (3, len(FEATURES)) for trace in traces if trace.run == 4)
    assert any(trace.run == 0 for trace in traces)
    alike = engine_for({**DRAFT, "policy": "fixed"})
    assert {trace.run for trace in collect_traces(alike, ids[:1], GREEDY)} >= {4}


def test_a_drafter_without_laws_teaches_nothing(engine_for):
    with pytest.raises(InvalidParameter, match="draft_model"):
        collect_traces(engine_for({"method": "ngram"}), [list(b"abcabcabc")], GREEDY)


def test_train_disco_writes_a_classifier_that_generate_can_read(tiny, monkeypatch, tmp_path):
    pytest.importorskip("torch")
    from tests.engine.conftest import load_random

    monkeypatch.setattr(load, "load", lambda name, *_: load_random(int(name.removeprefix("random-"))))
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "disco.json"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    result = CliRunner().invoke(
        app,
        ["train", "disco", "--prompts", str(prompts), "-m", "random-0", "--draft-model", "random-1", "-o", str(output),
         "-n", "30", "-k", "4", "--json"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["oracle_rate"] >= record["fixed_rate"]
    assert Classifier.read(output).threshold == record["threshold"]
