"""Policies that read how sure the draft is: hand-worked stops, files, and what they cannot see."""

import json

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.sampling import Law
from paceline.speculation import BatchStats, DraftStats, PrefixStats
from paceline.speculation.policies import Classifier, Confidence, Disco
from paceline.speculation.policies.disco import FEATURES, DraftTrace, features

PREFIX = PrefixStats(DraftStats(), BatchStats(), budget=8)
NUM = len(FEATURES)


def law(*probs: float) -> Law:
    return Law.from_dense(np.array(probs))


def sure(largest: float) -> Law:
    return law(largest, 1 - largest)


def by_top_probability(threshold: float = 0.5) -> Classifier:
    """Chance = sigmoid(10 (largest probability - 0.6))."""
    weights = np.zeros((1, NUM))
    weights[0, 0] = 10
    return Classifier([0.6] + [0.0] * (NUM - 1), [1.0] * NUM, [(weights, np.zeros(1))], threshold)


def test_confidence_multiplies_what_the_draft_was_sure_of():
    policy = Confidence(num_draft_tokens=6, threshold=0.5)
    assert policy.budgets([DraftStats()], BatchStats()) == [6]
    assert policy.keep_drafting(PREFIX, [sure(0.8), sure(0.7)])  # 0.56
    assert not policy.keep_drafting(PREFIX, [sure(0.8), sure(0.7), sure(0.8)])  # 0.448


def test_features_are_of_the_law_and_its_place():
    found = features([sure(0.5), sure(0.9), law(0.1, 0.6, 0.05, 0.05, 0.1, 0.05, 0.05)])
    assert found[:5] == pytest.approx([0.6, 0.1, 0.1, 0.05, 0.05])
    assert found[5] == pytest.approx(-sum(p * np.log(p) for p in (0.6, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05)))
    assert found[6:] == pytest.approx([2, 0.45])
    assert features([Law.one_hot(3)]) == pytest.approx([1, 0, 0, 0, 0, 0, 0, 1])


def test_disco_stops_where_the_chance_falls_below_the_threshold():
    policy = Disco(by_top_probability(), num_draft_tokens=4)
    assert policy.budgets([DraftStats()], BatchStats()) == [4]
    assert policy.keep_drafting(PREFIX, [sure(0.65)])
    assert not policy.keep_drafting(PREFIX, [sure(0.95), sure(0.55)])
    assert Disco(by_top_probability(), 4, threshold=0.1).keep_drafting(PREFIX, [sure(0.95), sure(0.55)])


def test_a_hidden_layer_is_squashed():
    weights = np.zeros((2, NUM))
    weights[0, 0], weights[1, 0] = 1, -1
    net = Classifier([0.0] * NUM, [1.0] * NUM, [(weights, np.zeros(2)), (np.array([[2.0, 0.5]]), np.array([0.1]))])
    x = np.zeros(NUM)
    x[0] = 0.7
    assert net(x) == pytest.approx(1 / (1 + np.exp(-(1.5 * np.tanh(0.7) + 0.1))))
    assert net(np.stack([x, x])).shape == (2,)


def test_tokens_behind_the_first_refused_one_are_not_judged():
    rows = np.arange(3 * NUM, dtype=float).reshape(3, NUM)
    for run, labels in ((0, [False]), (1, [True, False]), (3, [True] * 3), (5, [True] * 3)):
        x, y = DraftTrace(rows, run).tested
        assert y.tolist() == labels
        assert np.array_equal(x, rows[: len(labels)])


def test_a_classifier_survives_its_file(tmp_path):
    path = tmp_path / "disco.json"
    by_top_probability(0.3).write(path)
    again, x = Classifier.read(path), np.linspace(0, 1, NUM)
    assert again.threshold == 0.3
    assert again(x) == by_top_probability()(x)


@pytest.mark.parametrize("change", [{"version": 9}, {"features": ["hope"]}, {"layers": []}, {"mean": "x"}])
def test_a_file_that_is_no_classifier_is_refused(tmp_path, change):
    path = tmp_path / "disco.json"
    by_top_probability().write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InvalidParameter, match=r"classifier.*train disco"):
        Classifier.read(path)
    with pytest.raises(InvalidParameter, match=r"classifier.*cannot be read"):
        Classifier.read(tmp_path / "nowhere.json")


@pytest.mark.parametrize("make", [Confidence, lambda **f: Disco(by_top_probability(), **f)])
@pytest.mark.parametrize("fields", [{"threshold": 1.5}, {"num_draft_tokens": -1}])
def test_impossible_values_are_refused(make, fields):
    with pytest.raises(InvalidParameter, match=next(iter(fields))):
        make(**fields)
