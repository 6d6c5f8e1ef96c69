"""Bets: planted faults are found at p < 1e-6, exact texts are not accused, effects that are absent are excluded."""

from math import log

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.evaluation.audit.betting import Bets
from paceline.evaluation.audit.ledger import fingerprint, read_bets, write_bets
from paceline.evaluation.audit.rivals import LENIENCES, RIVALS, lenience_name, ratios
from paceline.sampling.law import Law
from paceline.theory import lenient_law
from tests.evaluation.audit.faults import FAULTS, exact, laws

ALPHA = 1e-6
NUM_LAWS = 200
MOST = 40_000


def stream(emit, seed: int, count: int):
    """(p, q, token) as `emit` says them, over a fixed set of places."""
    rng = np.random.default_rng(seed)
    places = [laws(rng) for _ in range(NUM_LAWS)]
    dense = [(p.on(np.arange(50)), q.on(np.arange(50))) for p, q in places]
    for i in range(count):
        p, q = dense[i % NUM_LAWS]
        yield *places[i % NUM_LAWS], emit(rng, p, q)


def found_after(emit, seed: int = 0, most: int = MOST) -> int | None:
    bets = Bets()
    for p, q, token in stream(emit, seed, most):
        bets.feed(p, q, token)
        if bets.peak >= -log(ALPHA):
            return bets.num_drafted
    return None


SLOW = {
    "lenience 1.05", "lenience 1.1", "coin below 0.9", "temperature 0.9", "temperature 1.1", "draft leaks 10 %",
    "two best tokens mixed up", "top-p 0.95", "merged duplicates", "residual squared", "ratio squared",
    "residual only without the refused token",
}  # fmt: skip
"""Found too, after up to tens of thousands of tokens; `benchmarks/audit_power.py` says after how many."""


@pytest.mark.parametrize("name", sorted(set(FAULTS) - SLOW))
def test_a_planted_fault_is_found(name):
    assert found_after(FAULTS[name], most=6000) is not None


def test_forty_exact_texts_are_not_accused():
    worst = 0.0
    for seed in range(40):
        bets = Bets()
        for p, q, token in stream(exact, seed, 20):
            bets.feed(p, q, token)
        worst = max(worst, bets.peak)
    assert worst < log(40 * 20), "by Ville's inequality the largest of 40 peaks is below this in 95 of 100 tries"


def test_wealth_of_an_exact_text_excludes_lenient_rules_largest_first():
    bets = Bets()
    for p, q, token in stream(exact, 1, 800):
        bets.feed(p, q, token)
    assert bets.smallest_excluded() is not None
    assert bets.smallest_excluded() <= 2
    assert bets.p_value > 1e-3


def test_every_rival_is_a_law_and_a_bet_on_it_is_fair():
    """sum_x p(x) a(x) / p(x) = 1, whatever p and q are, one-hot drafts and tokens that p forbids included."""
    rng = np.random.default_rng(5)
    for trial in range(20):
        p, q = laws(rng, 12)
        if trial % 3 == 1:
            q = Law.one_hot(int(rng.integers(12)))
        if trial % 3 == 2:
            p = p.without(0, 1, 2)
        for draft in (q, None):
            mean = sum(float(p.prob(token)) * ratios(p, draft, token) for token in p.tokens.tolist())
            assert mean == pytest.approx(np.ones(len(RIVALS)))


def test_lenient_rivals_are_the_laws_that_lenient_rules_emit():
    p, q = laws(np.random.default_rng(2), 6)
    for factor in LENIENCES:
        number = [rival.name for rival in RIVALS].index(lenience_name(factor))
        law = lenient_law(p.probs, q.probs, 1 / factor)
        assert [ratios(p, q, token)[number] * p.prob(token) for token in range(6)] == pytest.approx(law.tolist())


def test_a_draft_that_cannot_be_said_changes_no_rival_that_reads_drafts():
    """As where top_p leaves out the token that a lookup proposes: every rule refuses it, and p is what remains."""
    p, q = Law(np.array([1, 4, 7]), np.array([0.5, 0.3, 0.2])), Law.one_hot(2)
    with np.errstate(all="raise"):
        gains = [ratios(p, q, token) for token in (1, 4, 7)]
    for rival, *found in zip(RIVALS, *gains, strict=True):
        if rival.reads_draft:
            np.testing.assert_allclose(found, 1, err_msg=rival.name)


def test_an_impossible_token_is_a_fault_at_once():
    bets = Bets()
    bets.feed(Law.one_hot(3), None, 4)
    assert bets.peak == float("inf")


@pytest.mark.parametrize("night", [[(1, 4)], [(30, 0), (30, 3)]], ids=["an impossible token", "won and lost again"])
def test_a_ledger_keeps_the_largest_wealth(tmp_path, night):
    path, bets = tmp_path / "ledger.json", Bets()
    p = Law.one_hot(3) if len(night) == 1 else Law(np.array([0, 3]), np.array([0.6, 0.4]))
    for times, token in night:
        for _ in range(times):
            bets.feed(p, None, token)
    assert bets.peak > max(0.0, bets.log_e) + 0.01
    write_bets(path, "key", bets)
    again = read_bets(path, "key")
    assert again.peak == pytest.approx(min(bets.peak, 1e9))
    assert again.p_value == pytest.approx(bets.p_value)
    again.feed(Law.one_hot(3), None, 3)
    assert again.p_value == pytest.approx(bets.p_value)


def test_evidence_adds_up_in_a_ledger(tmp_path):
    path, key = tmp_path / "ledger.json", fingerprint("weights", {"method": "suffix"})
    assert read_bets(path, key).num_tokens == 0
    found = None
    for night in range(30):
        bets = read_bets(path, key)
        for p, q, token in stream(FAULTS["lenience 1.5"], night, 60):
            bets.feed(p, q, token)
        write_bets(path, key, bets)
        if bets.peak >= -log(ALPHA):
            found = night
            break
    assert found is not None
    assert found > 0, "one night was not enough"
    assert read_bets(path, "another").num_tokens == 0
    path.write_text("{}")
    with pytest.raises(InvalidParameter, match="ledger"):
        read_bets(path, key)
