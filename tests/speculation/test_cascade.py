"""Cascade on made-up machines: it finds the best length, loses little where nothing pays, and comes back."""

import random
from collections.abc import Callable
from itertools import groupby

import pytest

from paceline.errors import InvalidParameter
from paceline.speculation import BatchStats, DraftStats, RequestOutcome, StepOutcome, StepSeconds
from paceline.speculation.policies import Cascade
from paceline.theory.acceptance import expected_tokens

Utility = Callable[[int], float]


def utility(alpha: float, cost_ratio: float) -> Utility:
    """U(K) = E(alpha, K) / (1 + c K)."""
    return lambda length: float(expected_tokens(alpha, length)) / (1 + cost_ratio * length)


def run(policy: Cascade, speed: Utility, steps: int, num_decodes: int = 1) -> list[tuple[str, int]]:
    """(phase, K) of every step on a machine where K drafts make a step U(K) times faster than a plain one."""
    seen = []
    for _ in range(steps):
        (length,) = policy.budgets([DraftStats()], BatchStats(num_decodes))
        seen.append((policy.phase, length))
        outcomes = [RequestOutcome(str(i), num_new=1000, num_draft_tokens=length) for i in range(num_decodes)]
        policy.observe(StepOutcome(outcomes, seconds=StepSeconds(verifying=1000 / speed(length))))
    return seen


def slowdown(seen: list[tuple[str, int]], speed: Utility) -> float:
    """Seconds against plain decoding for the same tokens, one token's worth per step at each step's own rate."""
    return sum(1 / speed(length) for _, length in seen) / len(seen) - 1


@pytest.mark.parametrize(
    ("alpha", "cost_ratio", "best"), [(0.3, 0.35, {0}), (0.5, 0.35, {1}), (0.8, 0.35, {2, 3}), (0.5, 0.2, {1, 2})]
)
def test_the_best_length_of_a_steady_machine_is_kept(alpha, cost_ratio, best):
    seen = run(Cascade(), utility(alpha, cost_ratio), 400)
    settled = {length for phase, length in seen[-100:] if phase == "set"}
    assert settled <= best
    assert settled


def test_back_off_bounds_what_a_hopeless_draft_costs():
    speed = utility(0.3, 0.35)
    patient, eager = run(Cascade(), speed, 250), run(Cascade(most_back_off=0), speed, 250)
    tests = [sum(phase == "test" for phase, _ in seen) for seen in (patient, eager)]
    assert 16 <= tests[0] <= 20
    assert 48 <= tests[1] <= 52
    assert slowdown(patient, speed) < 0.01


@pytest.mark.parametrize("most_back_off", [0, 2, 4])
@pytest.mark.parametrize("bad_steps", [100, 1000, 20_000])
def test_it_comes_back_within_a_bounded_number_of_steps_however_long_drafts_were_bad(bad_steps, most_back_off):
    """A trial that still saw the old machine, the longest phase without drafts, a base phase and all trials."""
    policy = Cascade(most_back_off=most_back_off)
    run(policy, utility(0.1, 0.35), bad_steps)
    most = 4 + (16 << most_back_off) + 4 + 4 * 4
    seen = run(policy, utility(0.9, 0.05), most + 1)
    assert any(phase == "set" and length > 0 for phase, length in seen)


def test_once_the_back_off_has_grown_it_stays_bounded():
    """16 of 272 steps are trials where drafts never pay, and no phase without drafts is longer than 256 steps."""
    seen = run(Cascade(), utility(0.1, 0.35), 20_000)[-2720:]
    longest = max(len(list(steps)) for phase, steps in groupby(phase for phase, _ in seen) if phase == "set")
    assert longest == 256
    assert sum(length > 0 for _, length in seen) <= 160


class ForgetsAfterATrial(Cascade):
    """What it did before: any trial that paid starts the doubling again."""

    def _settle(self) -> None:
        super()._settle()
        self._times_off = 0 if self.length else self._times_off


def shares(policy: Cascade, alpha: float, cost_ratio: float, seed: int, steps: int = 20_000) -> tuple[float, ...]:
    """Shares of trials and of set phases with drafts, and the slowdown, where tokens are accepted at random."""
    rng, trials, kept, seconds, tokens = random.Random(seed), 0, 0, 0.0, 0
    for _ in range(steps):
        (length,) = policy.budgets([DraftStats()], BatchStats(1))
        accepted = 0
        while accepted < length and rng.random() < alpha:
            accepted += 1
        trials += policy.phase == "test"
        kept += policy.phase == "set" and length > 0
        seconds += 1 + cost_ratio * length
        tokens += accepted + 1
        outcome = RequestOutcome("r", num_new=accepted + 1, num_draft_tokens=length)
        policy.observe(StepOutcome([outcome], seconds=StepSeconds(verifying=1 + cost_ratio * length)))
    return trials / steps, kept / steps, seconds / tokens - 1


def test_a_lucky_trial_does_not_end_the_back_off():
    """The figures of docs/adaptive.md: the best length loses 4 %, and four steps cannot tell."""
    seeds = range(6)
    found = [shares(Cascade(), 0.3, 0.35, seed) for seed in seeds]
    before = [shares(ForgetsAfterATrial(), 0.3, 0.35, seed) for seed in seeds]
    bounds = [[round(100 * end(each), 1) for end in (min, max)] for each in zip(*found, strict=True)]
    assert bounds == [[3.7, 5.7], [3.4, 5.8], [0.8, 1.1]]
    bounds = [[round(100 * end(each), 1) for end in (min, max)] for each in zip(*before, strict=True)]
    assert bounds == [[6.9, 11.1], [6.2, 11.4], [1.2, 2.1]]


@pytest.mark.parametrize(("alpha", "cost_ratio"), [(0.5, 0.35), (0.8, 0.2)])
def test_where_drafts_pay_a_longer_back_off_costs_nothing(alpha, cost_ratio):
    ours, before = ([shares(make(), alpha, cost_ratio, seed)[2] for seed in range(6)]
                    for make in (Cascade, ForgetsAfterATrial))  # fmt: skip
    assert sum(ours) / 6 < -0.03
    assert sum(ours) / 6 == pytest.approx(sum(before) / 6, abs=0.004)


@pytest.mark.parametrize("pays", [False, True])
def test_only_a_set_phase_that_paid_starts_the_doubling_again(pays):
    """By hand: off for 16 and 32 steps, a trial that pays, a phase that does or does not, then nothing pays."""
    policy, bad = Cascade(), utility(0.1, 0.35)
    run(policy, bad, 4 + 4 + 16 + 4 + 32)
    assert (policy.phase, policy.length) == ("test", 1)
    run(policy, lambda length: 1.5 if length == 1 else 1.0, 8)  # K = 1, then 2, which is worse
    assert (policy.phase, policy.length) == ("set", 1)
    run(policy, lambda length: 1.5 if pays else 0.9, 16)
    seen = run(policy, bad, 400)
    off = [len(list(steps)) for (phase, length), steps in groupby(seen) if phase == "set" and length == 0]
    assert off[0] == (16 if pays else 64)


def test_steps_that_read_prompts_or_did_nothing_say_nothing():
    policy = Cascade(base_steps=1)
    policy.observe(StepOutcome([RequestOutcome("r", num_new=1)], num_prefill_rows=8, seconds=StepSeconds(verifying=1)))
    policy.observe(StepOutcome(seconds=StepSeconds(scheduling=1)))
    assert policy.phase == "base"
    policy.observe(StepOutcome([RequestOutcome("r", num_new=1)], seconds=StepSeconds(verifying=1)))
    assert policy.phase == "test"


def test_it_comes_back_when_drafts_begin_to_pay():
    policy = Cascade()
    run(policy, utility(0.1, 0.35), 100)
    assert policy.length == 0
    seen = run(policy, utility(0.8, 0.1), 300)
    assert {length for phase, length in seen[-50:] if phase == "set"} >= {seen[-1][1]} - {0}
    assert seen[-1][1] >= 3


def test_it_leaves_when_drafts_stop_paying():
    policy = Cascade()
    run(policy, utility(0.8, 0.1), 100)
    assert policy.length >= 3
    seen = run(policy, utility(0.1, 0.35), 300)
    assert {length for phase, length in seen[-200:] if phase == "set"} == {0}
    assert sum(length > 0 for _, length in seen[-200:]) <= 20


def test_noise_of_ten_percent_does_not_mislead_it_much():
    rng, speed = random.Random(5), utility(0.8, 0.2)
    seen = run(Cascade(), lambda length: speed(length) * rng.uniform(0.9, 1.1), 600)
    best = max(speed(length) for length in range(9))
    rate = sum(speed(length) for _, length in seen) / len(seen)
    assert rate > 0.9 * best


def test_another_batch_size_is_another_machine():
    policy = Cascade()
    run(policy, utility(0.8, 0.1), 100, num_decodes=1)
    assert policy.length > 0
    run(policy, utility(0.8, 2.0), 1, num_decodes=16)
    assert policy.phase == "base"
    run(policy, utility(0.8, 2.0), 30, num_decodes=16)
    assert policy.length == 0


def test_the_base_is_measured_anew():
    policy = Cascade(refresh_every=50)
    seen = run(policy, utility(0.9, 0.05), 200)
    assert sum(phase == "base" for phase, _ in seen) >= 8


def test_requests_own_drafts_are_in_no_phase():
    """An answer that begins as its prediction says: the steps that verify it are not what plain decoding takes."""
    policy, speed = Cascade(), utility(0.8, 0.35)
    for _ in range(20):
        own = RequestOutcome("r", num_new=5000, num_draft_tokens=4, is_own=True)
        policy.observe(StepOutcome([own], seconds=StepSeconds(verifying=1000.0)))
    assert {length for phase, length in run(policy, speed, 60) if phase == "set"} == {2, 3}


def test_one_request_that_drafts_for_itself_keeps_nobody_from_drafts():
    """As one whose grammar forces tokens in every step, among others."""
    policy, speed = Cascade(), utility(0.8, 0.35)
    own = RequestOutcome("own", num_new=5000, num_draft_tokens=4, is_own=True)
    seen = set()
    for _ in range(60):
        (length,) = policy.budgets([DraftStats()], BatchStats(8))
        seen |= {length} if policy.phase == "set" else set()
        others = [RequestOutcome(str(i), num_new=1000, num_draft_tokens=length) for i in range(7)]
        policy.observe(StepOutcome([own, *others], seconds=StepSeconds(verifying=1000 / speed(length))))
    assert seen == {2, 3}


def test_without_drafts_to_try_it_drafts_nothing():
    assert Cascade(num_draft_tokens=0).budgets([DraftStats()], BatchStats()) == [0]


@pytest.mark.parametrize(
    "fields", [{"num_draft_tokens": -1}, {"trial_steps": 0}, {"base_steps": 0}, {"tie": -0.1}, {"most_back_off": -1}]
)
def test_impossible_settings_are_refused(fields):
    with pytest.raises(InvalidParameter, match=next(iter(fields))):
        Cascade(**fields)
