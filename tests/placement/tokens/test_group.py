"""The compiled rule against a plain program of it, and its outlook against what then happens."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement.tokens import TokenAsk, TokenGroup, TokenModel, TokenProfile, TokenRequests, simulate_tokens
from paceline.placement.workload import Workload
from paceline.scheduling.profile import Profile
from tests.placement.tokens.plain_group import PlainRequest, play

SLOW = TokenProfile(
    {0: {1: 0.25, 8: 0.5, 32: 2.0}, 128: {1: 0.5, 32: 3.0}}, {0: {8: 0.5, 64: 2.0}}, {0: 0.0625, 64: 0.125}, 0.03125,
    seats=4, token_budget=24, kv_tokens=200,
)  # fmt: skip
QUICK = TokenProfile({0: {1: 0.125, 16: 0.25}}, seats=2)


def drawn(seed, models, count=40):
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1.5, count))
    return [
        PlainRequest(i, str(rng.choice(models)), int(rng.integers(1, 60)), int(rng.integers(1, 40)), 20.0, arrivals[i])
        for i in range(count)
    ]


GROUPS = {
    "one model": {"a": SLOW},
    "prompts that cost more behind their own chunks": {
        "a": replace(SLOW, prefill_seconds={0: {8: 0.5, 64: 2.0}, 24: {8: 0.75, 64: 3.0}, 60: {8: 1.0, 64: 5.0}})
    },
    "two models": {"a": SLOW, "b": QUICK},
    "two stages": {"a": SLOW.in_pipeline(2)},
    "two models in three stages": {"a": SLOW.in_pipeline(3), "b": QUICK.in_pipeline(3)},
    "stages that share a memory": {
        "a": replace(SLOW.in_pipeline(2), overlap=1.25, prefill_overlap=1.75),
        "b": replace(QUICK.in_pipeline(2), overlap=1.5),
    },
}


@pytest.mark.parametrize("profiles", GROUPS.values(), ids=GROUPS)
def test_the_kernel_plays_the_plain_programs_rule(profiles):
    for seed in range(8):
        requests = drawn(seed, list(profiles))
        group, found = TokenGroup(profiles), {}
        for request in requests:
            found |= {number: (first, end) for number, first, end in group.advance(request.arrival)}
            ask = TokenAsk(request.model, request.prompt, request.expected)
            group.join(request.number, ask, request.arrival, request.total)
        found |= {number: (first, end) for number, first, end in group.advance(1e9)}
        expected = play(requests, profiles)
        assert found.keys() == expected.keys()
        for number, (first, end) in expected.items():
            assert found[number] == pytest.approx((first, end), rel=1e-9), (seed, number)


def test_a_prompt_is_read_chunk_by_chunk_behind_itself():
    """16,000 tokens in chunks of 2,048: seven whole ones and 1,664 tokens, 0.3 s at the beginning, 3.0 s at the end."""
    profile = TokenProfile({0: {1: 0.01}}, {0: {2048: 0.3}, 16000: {2048: 3.0}}, token_budget=2048)
    last = 7 * 2048
    chunks = [0.3 + 2.7 * start / 16000 for start in range(0, last, 2048)]
    lone = TokenGroup({"a": profile}).consider(TokenAsk("a", 16000, 1), 0.0)
    rest = profile.pass_seconds(0, prompt_rows=1664, read_before=last)
    assert lone.first == pytest.approx(sum(chunks) + rest)
    assert rest > 0.3


def test_a_request_that_the_memory_does_not_hold_is_late_wherever_it_joins():
    ask = TokenAsk("a", 300, 150)
    assert TokenGroup({"a": replace(QUICK, kv_tokens=449)}).consider(ask, 0.0).is_late
    assert not TokenGroup({"a": replace(QUICK, kv_tokens=450)}).consider(ask, 0.0).is_late


def test_a_pipeline_of_two_stages_does_twice_as_much_and_no_request_faster():
    """Passes that take the same however many rows they have: two in flight, each half of the requests."""
    level, number = TokenProfile({0: {1: 0.25, 64: 0.25}}, seats=1), 8
    ends, fill = {}, 0.125  # of the first pass, the second half: meanwhile the other lane's pass is in the first half
    for stages in (1, 2):
        group = TokenGroup({"a": replace(level, seats=stages, stages=stages)})
        for request in range(number):
            group.join(request, TokenAsk("a", 1, 16), 0.0, 16)
        ends[stages] = sorted(end for _, _, end in group.advance(1e9))
    assert ends[2][0] == ends[1][0] and ends[2][-1] == ends[1][-1] / 2 + fill


def test_passes_enter_an_empty_pipeline_one_after_the_other():
    prompts = TokenProfile({0: {1: 0.5}}, {0: {64: 1.0}}, seats=4).in_pipeline(2)
    for profile, count, end in ((prompts, 1, 1.0), (prompts, 2, 1.5), (replace(prompts, prefill_overlap=1.25), 2, 1.8)):
        group = TokenGroup({"a": profile})
        for number in range(count):
            group.join(number, TokenAsk("a", 64, 1), 0.0, 1)
        assert [last for _, _, last in group.advance(1e9)] == pytest.approx([1.0, end][-count:])


def test_an_outlook_comes_true_when_nobody_else_joins():
    group = TokenGroup({"a": SLOW})
    for number in range(6):
        group.join(number, TokenAsk("a", 30, 12), 1.0, 12)
    outlook = group.consider(TokenAsk("a", 10, 8), 2.0)
    group.join(9, TokenAsk("a", 10, 8), 2.0, 8)
    ended = {number: (first, end) for number, first, end in group.advance(1e9)}
    assert ended[9] == pytest.approx((outlook.first, outlook.end))


@pytest.mark.parametrize("stages", [1, 2])
def test_when_an_answer_of_any_length_is_whole_is_known_afterwards_too(stages):
    """Rounds that read prompts take much longer than others: tokens do not come evenly."""
    profiles = {"a": SLOW.in_pipeline(stages), "b": QUICK.in_pipeline(stages)}
    ends = {}
    for tokens in (1, 2, 5, 9, 14):
        exact, goes_on, ended = TokenGroup(profiles), TokenGroup(profiles), []
        for number in range(6):
            ended += exact.advance(0.5 * number)
            for group, total in ((exact, tokens if number == 1 else float("inf")), (goes_on, float("inf"))):
                group.join(number, TokenAsk("ab"[number % 2], 40 - 7 * number, 20), 0.5 * number, total)
        ((_, _, ends[tokens]),) = ended + exact.advance(60.0)
        goes_on.advance(60.0)
        assert goes_on.end_of(1, tokens) == pytest.approx(ends[tokens], rel=1e-9)
    assert sorted(ends.values()) == list(ends.values())


def test_who_would_be_late_and_who_would_be_made_late_is_told():
    alone = TokenGroup({"a": QUICK})
    end = alone.consider(TokenAsk("a", 1, 10), 0.0).end
    alone.join(0, TokenAsk("a", 1, 10, by=end), 0.0, 10)
    assert alone.consider(TokenAsk("a", 1, 10, by=end), 0.0).is_late
    other = alone.consider(TokenAsk("a", 1, 10), 0.0)
    assert (other.is_late, other.makes_late) == (False, 1)
    for promise in ({"first_by": 0.1}, {"pace": 0.12}):
        assert TokenGroup({"a": QUICK}).consider(TokenAsk("a", 1, 10, **promise), 0.0).is_late


def test_costs_are_those_that_were_measured():
    tuned = Profile("m", "f", "int8", "numba", 2, "here", {0: {1: 0.01, 8: 0.02}, 64: {1: 0.02, 8: 0.04}},
                    {0: {1: 0.01, 64: 0.05}}, segment_seconds={0: 0.001, 64: 0.002}, step_overhead=0.0005)  # fmt: skip
    profile = TokenProfile.of_tuned(tuned)
    for rows, requests, context in ((1, 1, 0), (8, 3, 32), (4, 4, 64)):
        expected = tuned.batch_seconds(rows, requests, context) + 0.0005
        assert profile.pass_seconds(rows, requests, context) == pytest.approx(expected)
    assert TokenProfile.read(profile.record(), "here") == profile
    for wrong in ({"seats": 0}, {"tokens_per_pass": 0.5}, {"segment_seconds": {0: -1.0}}, {"seconds": {0: {1: 0.0}}}):
        with pytest.raises(InvalidParameter):
            TokenProfile(**({"seconds": {0: {1: 0.1}}} | wrong))


def test_many_requests_at_once_take_one_device_where_one_after_the_other_takes_three():
    """The measured int8 curve of a small model: one device answers what one request at a time needs three for."""
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.exponential(1 / 2.5, 300))
    requests = TokenRequests(Workload(times, np.zeros(300, np.int32)), np.full(300, 8), np.full(300, 128))
    curve = {0: {1: 1 / 112, 16: 16 / 447, 64: 64 / 513}}
    models = [TokenModel("a", slo=6.0)]
    together = simulate_tokens(requests, models, [{"a": TokenProfile(curve)}])
    assert together.slo_attainment > 0.98
    alone = [
        simulate_tokens(requests, models, [{"a": TokenProfile(curve, seats=1)}] * n).slo_attainment for n in (1, 3)
    ]
    assert alone[0] < 0.5 and alone[1] > 0.9


def test_passes_of_all_models_of_a_pipeline_follow_each_other_and_none_holds_up_those_before_it():
    prompts = TokenProfile({0: {1: 0.5}}, {0: {64: 1.0}}, seats=4).in_pipeline(2)
    group = TokenGroup({"a": prompts, "b": prompts.scaled(0.5)})
    for number, model in enumerate("aab"):
        group.join(number, TokenAsk(model, 64, 1), 0.0, 1)
    assert {number: end for number, _, end in group.advance(1e9)} == pytest.approx({0: 1.0, 1: 1.5, 2: 1.75})


def test_passes_too_short_to_be_told_in_a_late_time_end_all_the_same():
    group = TokenGroup({"a": TokenProfile({0: {1: 1e-9}}, stages=2)})
    group.join(0, TokenAsk("a", 1, 400), 1e9, 400)
    group.join(1, TokenAsk("a", 1, 400), 1e9, 400)
    assert sorted(number for number, _, _ in group.advance(1e9 + 1)) == [0, 1]
