"""Drafting only where it is faster than plain decoding, on a device that hides the host's work without drafts."""

import random
from collections.abc import Sequence

import pytest

from paceline.speculation.cost import CostProfile
from paceline.speculation.outcome import RequestOutcome, StepOutcome, StepSeconds
from paceline.speculation.policies import Goodput, WhereFaster
from paceline.speculation.prices import LearnedPass, LearnedPrices
from paceline.speculation.records import BatchStats, DraftStats
from paceline.speculation.traits import DrafterTraits

PASS, HOST = 0.001, 0.0006
AHEAD_AFTER = 6
"""Steps without drafts after which the host's work is hidden."""


class Always(Goodput):
    """Drafts of four for all, until it `gives_up`."""

    gives_up = False

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        return [0 if self.gives_up else self.num_draft_tokens] * len(requests)

    def observe(self, step: StepOutcome) -> None:
        """Nothing to learn."""


class World:
    """Requests that decode for good. With drafts a step takes longer and emits more tokens.

    Args:
        prior: seconds of a pass, as known beforehand.
    """

    def __init__(self, drafted: float, tokens: float, size: int = 8, prior: float = PASS) -> None:
        self.drafted, self.tokens, self.size, self.own = drafted, tokens, size, False
        prices = LearnedPrices(LearnedPass(CostProfile({1: prior, 64: prior})), hides_host=True)
        self.inner, self.prices = Always(prices, num_draft_tokens=4), prices
        self.policy = WhereFaster(self.inner, prices)
        self.seconds, self.said, self.drafts, self._in_a_row = 0.0, 0.0, [], 0
        self._random = random.Random(0)

    def step(self, num_prefill_rows: int = 0) -> None:
        batch = BatchStats(self.size, num_prefill_rows)
        drafts = any(self.policy.budgets([DraftStats()] * self.size, batch))
        self._in_a_row = 0 if drafts else self._in_a_row + 1
        seconds = self.drafted if drafts else PASS + HOST * (self._in_a_row <= AHEAD_AFTER)
        seconds *= self._random.uniform(0.9, 1.1)
        counts = [1] * self.size
        if drafts:
            counts = [max(1, round(self._random.uniform(0.5, 1.5) * self.tokens)) for _ in range(self.size)]
        requests = [
            RequestOutcome(str(number), num_new=count, num_draft_tokens=4 * drafts, is_own=self.own)
            for number, count in enumerate(counts)
        ]
        outcome = StepOutcome(requests, num_prefill_rows, seconds=StepSeconds(verifying=seconds))
        self.policy.observe(outcome)
        self.prices.observe(outcome)
        self.seconds, self.said = self.seconds + seconds, self.said + sum(counts)
        self.drafts.append(drafts)

    def run(self, seconds: float) -> float:
        """Tokens per second and request of that time."""
        started, said = self.seconds, self.said
        while self.seconds < started + seconds:
            self.step()
        return (self.said - said) / (self.seconds - started) / self.size


PLAIN = 1 / PASS


def test_drafts_that_slow_decoding_down_end_and_trials_lose_little():
    world = World(drafted=0.003, tokens=2)
    world.run(0.5)
    assert world.run(20) > 0.98 * PLAIN
    assert 0.001 < sum(world.drafts) / len(world.drafts) < 0.05  # they are tried again from time to time


def test_drafts_that_speed_decoding_up_stay():
    world = World(drafted=0.002, tokens=3)
    world.run(0.5)
    assert world.run(20) > 0.98 * 3 / 0.002
    assert not all(world.drafts)  # the other way was tried, too


def test_without_drafts_is_tried_once_where_that_could_not_be_better():
    world = World(drafted=0.002, tokens=6)
    world.run(1)
    assert world.drafts.count(False) == 32
    world.run(5)
    assert world.drafts.count(False) == 32


@pytest.mark.parametrize("prior", [0.3 * PASS, 2 * PASS, 20 * PASS])
def test_a_wrong_first_price_of_plain_decoding_is_found_out(prior):
    slower, faster = World(0.003, 2, prior=prior), World(0.002, 3, prior=prior)
    slower.run(4)
    faster.run(4)
    assert slower.run(4) > 0.95 * PLAIN
    assert faster.run(4) > 0.95 * 3 / 0.002


def test_traffic_that_changes_is_noticed():
    world = World(drafted=0.003, tokens=2)
    world.run(5)
    world.tokens = 9
    world.run(5)
    assert world.run(5) > 0.95 * 3 * PLAIN
    world.tokens = 1
    assert world.run(5) > 0.9 * PLAIN


def test_each_number_of_requests_is_a_case_of_its_own():
    world = World(drafted=0.003, tokens=2, size=64)
    world.run(2)
    assert not world.drafts[-1]
    world.size = 1
    world.step()
    assert world.drafts[-1]
    world.size = 64
    world.step()
    assert not world.drafts[-1]


def test_steps_that_read_prompts_say_nothing():
    world = World(drafted=0.003, tokens=2)
    for _ in range(500):
        world.step(num_prefill_rows=64)
    assert all(world.drafts)


def test_a_step_that_failed_says_nothing():
    prices = LearnedPrices(LearnedPass(lambda *_: PASS), hides_host=True)
    policy = WhereFaster(Always(prices, num_draft_tokens=4), prices)
    for _ in range(300):
        lost = StepOutcome([RequestOutcome("a", num_new=1)], seconds=StepSeconds(verifying=1.0), is_complete=False)
        policy.observe(lost)
    assert policy.budgets([DraftStats()], BatchStats(1)) == [4]


def test_a_step_that_was_disturbed_changes_nothing():
    world = World(drafted=0.002, tokens=3)
    world.run(3)
    assert world.drafts[-1]
    drafted, world.drafted = world.drafted, 2.0
    world.step()
    world.drafted = drafted
    for _ in range(50):
        world.step()
    assert all(world.drafts[-50:])


def test_a_trial_begins_with_drafts_though_the_policy_has_given_them_up():
    world = World(drafted=0.003, tokens=2)
    world.run(2)
    world.inner.gives_up = True
    seen = len(world.drafts)
    world.run(20)
    assert 0 < sum(world.drafts[seen:]) < 0.05 * len(world.drafts)


def test_steps_that_read_prompts_are_left_to_the_policy():
    world = World(drafted=0.003, tokens=2)
    world.inner.gives_up = True
    for _ in range(100):
        world.step(num_prefill_rows=64)
    assert not any(world.drafts)
    world.step()
    assert world.drafts[-1]


def test_a_draft_model_is_not_made_to_read_all_texts():
    reads = DrafterTraits(reads=True, cost_ratio=0.1)
    prices = LearnedPrices(LearnedPass(CostProfile({1: PASS, 512: 10 * PASS})), reads, hides_host=True)
    inner = Always(prices, num_draft_tokens=4)
    inner.gives_up = True
    assert WhereFaster(inner, prices).budgets([DraftStats()], BatchStats(1)) == [0]


def test_drafts_of_the_requests_themselves_say_nothing():
    world = World(drafted=0.003, tokens=2)
    world.own = True
    world.run(2)
    assert all(world.drafts)


def test_the_first_trial_of_an_engine_does_not_delay_the_second():
    world = World(drafted=0.003, tokens=1)
    while not world.drafts or world.drafts[-1]:
        world.step()
    world.tokens = 9
    for _ in range(200):
        world.step()
    assert all(world.drafts[-60:])
