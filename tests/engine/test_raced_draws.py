"""Sampled texts of engines whose model races rows: those of drawing from laws, and which requests race."""

import numpy as np
import pytest

from paceline.engine.loop import verifying
from paceline.models.base import RacesRows
from paceline.models.numba_executor.executor import NumbaModel
from paceline.types import SamplingParams

from .conftest import PROMPTS, run_all

SAMPLED = {
    "plain": {}, "nucleus": {"top_p": 0.8}, "few": {"top_k": 6}, "cool": {"temperature": 0.3},
    "two limits": {"top_k": 9, "top_p": 0.9}, "min-p": {"min_p": 0.05}, "logprobs": {"logprobs": 2},
    "penalised": {"frequency_penalty": 0.5}, "biased": {"logit_bias": {7: 3.0}}, "greedy": {"temperature": 0},
    "some ids": {"allowed_token_ids": list(range(40, 90)), "top_p": 0.7}, "late end": {"min_tokens": 9, "top_k": 50},
    "words": {"bad_words": ["ab", "q"]},
}  # fmt: skip


def params_of(kind, **more):
    return SamplingParams(**({"temperature": 1.0, "max_tokens": 24, "ignore_eos": True} | SAMPLED[kind] | more))


@pytest.fixture
def raced(monkeypatch):
    """Logits that the model was asked to race."""
    rows, whole = [], NumbaModel.race
    monkeypatch.setattr(NumbaModel, "race", lambda self, row, *asked: rows.append(row) or whole(self, row, *asked))
    return rows


@pytest.mark.parametrize("method", ["none", "ngram", {"method": "suffix", "options": {"memory": "none"}}], ids=str)
@pytest.mark.parametrize("kind", SAMPLED)
def test_texts_are_those_of_laws(engine_for, raced, monkeypatch, kind, method):
    asked = [params_of(kind, seed=number) for number in range(len(PROMPTS))]
    ours = run_all(engine_for(method), params=asked)
    assert bool(raced) == (kind != "greedy")
    monkeypatch.setattr(verifying, "_can_race", lambda *_: False)
    theirs = run_all(engine_for(method), params=asked)
    assert [one.token_ids for one in ours] == [one.token_ids for one in theirs]


@pytest.mark.parametrize("rule", ["auto", "p/q", "block", "rejection_sampling", "lenient"])
def test_requests_without_a_seed_race_where_their_rule_only_draws(engine_for, monkeypatch, rule):
    """p/q reads probabilities where something was drafted; the other rules with coins always read laws."""
    found, can_race = set(), verifying._can_race

    def asked(live, tree, scores):
        found.add((bool(len(tree)), can_race(live, tree, scores)))
        return can_race(live, tree, scores)

    monkeypatch.setattr(verifying, "_can_race", asked)
    config = {"method": "ngram", "rule": rule, "policy": "fixed", "num_draft_tokens": 3}
    run_all(engine_for(config), params=params_of("plain", max_tokens=40))
    drafted, plain = {"auto": (True, True), "p/q": (False, True)}.get(rule, (False, False))
    assert found == {(True, drafted), (False, plain)}


def test_a_row_that_is_no_number_is_reported_as_ever(engine_for, monkeypatch):
    engine = engine_for("none")
    forward = NumbaModel.forward

    def damaged(self, rows, cache, taps=()):
        output = forward(self, rows, cache, taps)
        output.logits[:, 5] = np.nan
        output.peaks[:] = [-1] * len(output.peaks)
        return output

    monkeypatch.setattr(NumbaModel, "forward", damaged)
    [found] = run_all(engine, ["abc"], params_of("plain"))
    assert found.outputs[0].finish_reason == "error"


def test_who_races():
    assert issubclass(NumbaModel, RacesRows)
