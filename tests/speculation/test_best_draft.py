"""`best_draft` against trying every allocation: levels of their own, shared draft steps, lookups, whole drafts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.speculation import BatchStats, Choice, DraftRates, DraftStats, Offers, StepOutcome, best_draft
from paceline.speculation.best_draft import loss_of_trying, step_seconds
from tests.speculation.drafts import at_rates

LEVELS = 3


@dataclass(frozen=True)
class Machine:
    """Prices with everything that prices may have.

    Attributes:
        row: of a pass, over 1 for the pass itself; `kink`: more for each row beyond the sixth.
        step, share: of a draft step, and more for every request that takes part.
        lookup: of a request's draft, however deep.
    """

    row: float = 0.1
    kink: float = 0.0
    step: float = 0.0
    share: float = 0.0
    lookup: float = 0.0

    def target(self, rows: float, context: float = 0.0) -> float:
        return 1 + self.row * rows + self.kink * max(0, rows - 6)

    def draft_level(self, level: int, num_requests: int, context: float = 0.0) -> float:
        if self.lookup:
            return 0.0 if level else self.lookup * num_requests
        return self.step + self.share * num_requests

    def observe(self, step: StepOutcome) -> None:
        """Nothing to learn."""

    def made(self, offers: Offers, levels: Sequence[int], batch: BatchStats) -> tuple[float, float]:
        """Tokens and seconds of an allocation, straight from the definition."""
        rows, tokens = float(batch.num_prefill_rows + batch.num_decodes), float(batch.num_decodes)
        for request, taken in enumerate(levels):
            rows += offers.rows[request, :taken].sum()
            tokens += offers.tokens[request, :taken].sum()
        users = [sum(taken > level for taken in levels) for level in range(max(levels))]
        return tokens, self.target(rows) + sum(self.draft_level(level, n) for level, n in enumerate(users))

    def rate(self, offers: Offers, levels: Sequence[int], batch: BatchStats) -> float:
        """Tokens per second of an allocation."""
        tokens, seconds = self.made(offers, levels, batch)
        return tokens / seconds

    def best_rate(self, offers: Offers, batch: BatchStats) -> float:
        """Of all allocations."""
        return max(self.rate(offers, levels, batch) for levels in every(offers))

    def gain(self, offers: Offers, levels: Sequence[int], batch: BatchStats, rate: float) -> float:
        """Tokens of an allocation beyond those that its seconds are worth."""
        tokens, seconds = self.made(offers, levels, batch)
        return tokens - rate * seconds


def every(offers: Offers) -> Iterator[tuple[int, ...]]:
    """All allocations."""
    num_requests, num_levels = offers.tokens.shape
    return product(range(num_levels + 1), repeat=num_requests)


chances = st.lists(st.floats(0, 1), min_size=LEVELS, max_size=LEVELS)
requests = st.lists(chances, min_size=1, max_size=3).map(lambda rates: [at_rates(each) for each in rates])
shared = st.builds(Machine, st.floats(0.001, 0.5), st.sampled_from([0.0, 0.4]), st.floats(0, 0.3), st.floats(0, 0.2))
lookups = st.builds(Machine, st.floats(0.001, 0.5), st.sampled_from([0.0, 0.4]), lookup=st.floats(0.0005, 0.3))


def chosen(machine: Machine, stats: Sequence[DraftStats], prefill: int = 0) -> tuple[Choice, Offers, BatchStats]:
    offers, batch = Offers.of(stats, LEVELS, whole=False), BatchStats(len(stats), prefill)
    return best_draft(offers, machine, batch), offers, batch


@given(shared, requests)
def test_it_is_the_best_of_all_allocations_where_draft_steps_are_shared(machine, stats):
    choice, offers, batch = chosen(machine, stats)
    assert choice.rate == pytest.approx(machine.rate(offers, choice.levels.tolist(), batch), rel=1e-9)
    assert choice.rate == pytest.approx(machine.best_rate(offers, batch), rel=1e-9)


@given(shared, requests, st.integers(1, 8))
def test_beside_a_prompt_it_gains_most_at_the_best_rate_without_one(machine, stats, prefill):
    choice, offers, batch = chosen(machine, stats, prefill)
    rate = machine.best_rate(offers, BatchStats(len(stats)))
    assert choice.rate == pytest.approx(rate, rel=1e-9)
    best = max(machine.gain(offers, levels, batch, rate) for levels in every(offers))
    assert machine.gain(offers, choice.levels.tolist(), batch, rate) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("prefill", [0, 100, 10_000])
def test_a_long_prompt_makes_no_draft_worth_while_that_is_not_without_it(prefill):
    """Where rows are dear, the mixed step's own rate would take everything beside 10,000 rows of a prompt."""
    choice, offers, batch = chosen(Machine(row=1.0), [at_rates([0.4, 0.4, 0.4])], prefill)
    assert choice.levels.tolist() == [0]
    nothing, all_of_it = (Machine(row=1.0).rate(offers, [levels], batch) for levels in (0, 3))
    assert (all_of_it > nothing) == (prefill > 0)


@given(lookups, chances)
def test_it_is_the_best_of_all_for_one_request_that_looks_its_drafts_up(machine, rates):
    choice, offers, batch = chosen(machine, [at_rates(rates)])
    assert choice.rate == pytest.approx(machine.best_rate(offers, batch), rel=1e-9)


@given(lookups, requests)
def test_with_lookups_it_loses_at_most_what_they_cost(machine, stats):
    """Levels are taken in order of tokens per row, which leaves out what opening a request's draft costs."""
    choice, offers, batch = chosen(machine, stats)
    assert choice.rate == pytest.approx(machine.rate(offers, choice.levels.tolist(), batch), rel=1e-9)
    assert choice.rate >= machine.best_rate(offers, batch) * (1 - len(stats) * machine.lookup) - 1e-9


def test_levels_that_pay_only_together_are_taken_together():
    """The first level alone brings less than the lookup that it needs costs."""
    machine = Machine(row=0.001, lookup=0.5)
    choice, offers, batch = chosen(machine, [at_rates([0.4, 1.0, 1.0])])
    assert choice.levels.tolist() == [3]
    assert machine.rate(offers, [1], batch) < machine.rate(offers, [0], batch)


def test_deeper_levels_of_one_may_go_before_the_first_of_another():
    choice, _, _ = chosen(Machine(row=0.35), [at_rates([0.9, 0.99, 0.99]), at_rates([0.3, 1.0, 1.0])])
    assert choice.levels.tolist() == [3, 0]


def test_the_fewest_rows_win_ties():
    offers = Offers(rows=np.ones((2, LEVELS)), tokens=np.array([[0.5, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    assert best_draft(offers, Machine(row=0.0), BatchStats(2)).levels.tolist() == [1, 0]
    assert best_draft(offers, Machine(row=9.0), BatchStats(2)).levels.tolist() == [0, 0]


def test_whole_drafts_are_one_level_with_their_average_rows_and_tokens():
    rates = DraftRates(asked=4.0, answered=2.0, drafts=2.0, nodes=12.0, accepted=[1.8, 1.2], tested=[2.0, 1.8])
    offers = Offers.of([DraftStats(rates=rates)], 8, whole=True)
    assert offers.rows.tolist() == [[pytest.approx(0.5 * 6)]]
    assert offers.tokens.tolist() == [[pytest.approx(0.5 * 1.5)]]


def test_a_drafter_that_often_has_no_answer_offers_less_of_both():
    half = DraftStats(rates=DraftRates(asked=4.0, answered=2.0, accepted=[0.8], tested=[1.0]))
    offers = Offers.of([half], 2, whole=False)
    assert offers.rows == pytest.approx(np.array([[0.5, 0.5]]))
    assert offers.tokens == pytest.approx(np.array([[0.4, 0.32]]))


@pytest.mark.parametrize("size", [64, 200])
def test_many_rows_are_priced_at_few_points(size):
    """Passes over more rows than are priced one by one: the lines between must not cost more than a little."""
    rng, machine = np.random.default_rng(2), Machine(row=0.002)
    stats = [at_rates(rng.random(LEVELS).tolist()) for _ in range(size)]
    choice, offers, _ = chosen(machine, stats)
    in_order = np.sort(offers.tokens.ravel())[::-1]
    best = max((size + in_order[:n].sum()) / machine.target(size + n) for n in range(len(in_order) + 1))
    assert choice.rate == pytest.approx(best, rel=1e-6)


def test_a_step_costs_its_rows_and_its_levels():
    machine, batch = Machine(row=0.1, step=0.2, share=0.01), BatchStats(num_decodes=4, num_prefill_rows=10)
    assert step_seconds(machine, batch, 0) == pytest.approx(1 + 0.1 * 14)
    assert step_seconds(machine, batch, 2) == pytest.approx(2 * 0.24 + 1 + 0.1 * 22)
    assert step_seconds(machine, batch, 2, nodes=5) == pytest.approx(2 * 0.24 + 1 + 0.1 * 34)


@given(shared, requests)
def test_trying_loses_what_the_rate_says(machine, stats):
    """Against the definition: seconds beyond those in which the step's rate would have brought the same tokens."""
    choice, offers, batch = chosen(machine, stats)
    losses = loss_of_trying(offers, choice, machine, batch)
    for place in np.flatnonzero(choice.levels == 0).tolist():
        levels = choice.levels.copy()
        levels[place] = 1
        tokens = choice.tokens + offers.tokens[place, 0]
        seconds = tokens / machine.rate(offers, levels.tolist(), batch)
        assert losses[place] == pytest.approx(max(0.0, seconds - tokens / choice.rate), abs=1e-9)
