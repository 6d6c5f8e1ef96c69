"""`Calibration`: it learns what was seen, from nodes whose fate says nothing of itself, and keeps their order."""

import numpy as np
import pytest

from paceline.drafters.lookup.calibration import FIRST_SEEN, SAID, Calibration
from paceline.speculation.outcome import RequestOutcome


def told(new: tuple[int, ...], tokens: tuple[int, ...] = ()) -> RequestOutcome:
    """A step that committed `new` after verifying a chain of `tokens`."""
    return RequestOutcome("r", (7, *new), len(new), num_draft_tokens=len(tokens), tokens=tokens)


def test_the_curve_begins_with_what_was_seen_before():
    assert Calibration()(np.array(SAID[::-1])).tolist() == list(FIRST_SEEN[::-1])


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
def test_what_is_seen_is_learned_and_order_is_kept(rate):
    curve, rng = Calibration(), np.random.default_rng(3)
    for hit in rng.random(4000) < rate:
        curve.judge([1], [-1], [0.8], told((1,) if hit else (2,)))
    everywhere = curve(np.linspace(1, 0, 101))
    assert curve(np.array([0.8]))[0] == pytest.approx(rate, abs=0.06)
    assert np.all(np.diff(everywhere) <= 0) and everywhere.min() >= 0 and everywhere.max() <= 1


def test_a_curve_finds_the_rates_of_chances_that_are_squared():
    curve, rng = Calibration(), np.random.default_rng(4)
    for said in rng.random(20000):
        curve.judge([1], [-1], [said], told((1,) if rng.random() < said**2 else (2,)))
    said = np.array([0.97, 0.8, 0.5, 0.2])
    assert curve(said) == pytest.approx(said**2, abs=0.06)


def judged(tokens, parents, outcome) -> list[tuple[float, bool]]:
    """What `judge` keeps of nodes that said 0.1, 0.2 ..., and whether each was accepted."""
    curve = Calibration()
    curve.judge(tokens, parents, [0.1 * (node + 1) for node in range(len(tokens))], outcome)
    return [(round(said, 1), kept) for said, kept in zip(curve._said, curve._accepted, strict=True)]


def test_nodes_below_one_that_was_not_verified_say_nothing():
    chain, parents = [1, 2, 3], [-1, 0, 1]
    assert judged(chain, parents, told((1, 2, 9), (1, 2, 3))) == [(0.1, True), (0.2, True), (0.3, False)]
    assert judged(chain, parents, told((9,), (1, 2, 3))) == [(0.1, False), (0.2, False), (0.3, False)]
    assert judged(chain, parents, told((1,))) == [(0.1, True)]
    assert judged(chain, parents, told((9,))) == [(0.1, False)]
    assert judged(chain, parents, told((1, 2), (1,))) == [(0.1, True), (0.2, True)]
    assert judged(chain, parents, told((1, 2), (5, 6))) == [(0.1, True)]  # another drafter's tree was verified
    assert judged(chain, parents, told(())) == []


def test_siblings_are_judged_together():
    assert judged([1, 2, 3], [-1, -1, 1], told((2, 3), (1, 2, 3))) == [(0.1, False), (0.2, True), (0.3, True)]
