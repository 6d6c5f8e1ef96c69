"""DISCO learns easy from hard text: not below the best fixed length where they mix, nor where nothing can be told."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

pytest.importorskip("torch")

from paceline.errors import InvalidParameter
from paceline.sampling import Law
from paceline.speculation.policies.disco import DraftTrace, features
from paceline.theory.oracle import rate_of
from paceline.training.disco import THRESHOLDS, lengths_of, split, train

LENGTH = 8


def seconds(length: int) -> float:
    return 1 + 0.25 * length


@cache
def drafts(*rates: float, informative: bool, seed: int = 0) -> list[DraftTrace]:
    """Texts that switch between regimes; the draft's confidence tells which one it is in, or nothing."""
    rng, traces = np.random.default_rng(seed), []
    for text in range(24):
        for _ in range(30):
            alpha = rates[rng.integers(len(rates))]
            accepted = rng.random(LENGTH) < alpha
            top = np.clip((alpha if informative else 0.6) + rng.normal(0, 0.08, LENGTH - 1), 0.05, 0.98)
            laws = [Law.from_dense(np.array([p, (1 - p) / 2, (1 - p) / 2])) for p in top]
            rows = np.array([features(laws[: i + 1]) for i in range(LENGTH - 1)])
            traces.append(DraftTrace(rows, int(np.argmin(np.append(accepted, False))), text))
    return traces


@pytest.mark.parametrize("hidden", [0, 8])
def test_two_regimes_the_classifier_lies_between_the_best_fixed_length_and_the_oracle(hidden):
    classifier, worth = train(drafts(0.2, 0.95, informative=True), seconds, hidden)
    worth = worth.held_out
    assert worth.oracle_rate > worth.disco_rate > 1.03 * worth.fixed_rate
    assert worth.accuracy > worth.base_rate + 0.03
    assert 0 < classifier.threshold < 1


def test_where_nothing_can_be_told_little_is_lost():
    _, worth = train(drafts(0.7, informative=False), seconds)
    assert worth.held_out.disco_rate > 0.95 * worth.held_out.fixed_rate


def test_a_threshold_of_zero_drafts_to_the_end():
    traces = drafts(0.5, informative=True)
    classifier, _ = train(traces, seconds, hidden=0)
    assert set(lengths_of(classifier, 0.0, traces)) == {LENGTH}
    assert set(lengths_of(classifier, 1.0, traces)) == {1}


def test_the_same_seed_gives_the_same_classifier():
    traces = drafts(0.2, 0.95, informative=True)[::4]
    first, second = (train(traces, seconds, seed=3)[0] for _ in range(2))
    assert np.array_equal(first(traces[0].features), second(traces[0].features))


def test_too_little_is_refused():
    with pytest.raises(InvalidParameter, match="prompts"):
        train(drafts(0.5, informative=True)[:30], seconds)


@pytest.mark.parametrize("part", [0, 1])
def test_texts_whose_drafts_are_all_of_one_token_measure_nothing(part):
    traces = drafts(0.5, informative=True)
    short = {trace.group for trace in split(traces)[part]}
    cut = [replace(trace, features=trace.features[:0]) if trace.group in short else trace for trace in traces]
    with pytest.raises(InvalidParameter, match="too few to learn from"):
        train(cut, seconds)


def rate_at(classifier, threshold: float, traces: list[DraftTrace]) -> float:
    return rate_of([trace.run for trace in traces], lengths_of(classifier, threshold, traces), seconds)


def test_whole_texts_are_held_out_and_all_drafts_are_used():
    traces = drafts(0.5, informative=True)
    parts = split(traces)
    groups = [{trace.group for trace in part} for part in parts]
    assert sum(map(len, parts)) == len(traces)
    assert [len(each) for each in groups] == [6, 6, 12]
    assert not (groups[0] & groups[1] or groups[1] & groups[2] or groups[0] & groups[2])


def test_the_threshold_is_chosen_where_the_classifier_was_not_fitted():
    """On the texts to choose on every draft is refused, so they ask for short drafts; the others ask for long ones."""
    traces = drafts(0.95, informative=True)
    chosen = {trace.group for trace in split(traces)[1]}
    traces = [DraftTrace(trace.features, 0, trace.group) if trace.group in chosen else trace for trace in traces]
    classifier, reports = train(traces, seconds, hidden=0)
    held_out, on_chosen, fitted = ([rate_at(classifier, tau, part) for tau in THRESHOLDS] for part in split(traces))
    assert classifier.threshold == THRESHOLDS[int(np.argmax(on_chosen))]
    assert reports.chosen.disco_rate == max(on_chosen)
    assert reports.trained.disco_rate < max(fitted) and reports.held_out.disco_rate < max(held_out)
