"""Token by token: closed forms where there are any, and what speculation and load must do."""

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement.serving_simulator import ServingModel, TokenRequest, simulate_serving
from paceline.placement.tokens import TokenProfile
from paceline.scheduling import SchedulerConfig
from paceline.speculation import CostProfile, Fixed
from paceline.theory import expected_tokens

FLAT = CostProfile({1: 0.01})
STEEP = CostProfile({1: 0.01, 2: 0.02})


def test_a_lone_request_takes_one_pass_per_token():
    result = simulate_serving([TokenRequest(5.0, 100, 21)], ServingModel(FLAT))
    assert result.ttft == pytest.approx([0.01])
    assert result.latency == pytest.approx([0.21])
    assert result.tbt == pytest.approx([0.01] * 20)
    assert (result.num_passes, result.acceptance_length) == (21, 1.0)
    assert result.throughput == pytest.approx(100)


def test_drafts_that_always_stand():
    model = ServingModel(FLAT, acceptance_rate=1.0, draft_seconds=0.001, length=Fixed(4))
    result = simulate_serving([TokenRequest(0.0, 10, 21)], model)
    assert result.num_passes == 1 + 4  # 20 tokens after the first, five per pass
    assert result.latency == pytest.approx([0.01 + 4 * 0.014])
    assert result.acceptance_length == 5


@pytest.mark.parametrize(("alpha", "length"), [(0.0, 3), (0.6, 2), (0.8, 4)])
def test_tokens_per_pass_are_those_of_the_closed_form(alpha, length):
    model = ServingModel(FLAT, acceptance_rate=alpha, length=Fixed(length), config=config(max_model_len=8192))
    result = simulate_serving([TokenRequest(0.0, 10, 6000)], model, seed=1)
    assert result.acceptance_length == pytest.approx(expected_tokens(alpha, length), rel=0.03)


def test_speculation_pays_only_where_rows_are_cheap():
    requests = [TokenRequest(0.01 * i, 50, 40) for i in range(40)]
    drafting = {"acceptance_rate": 0.7, "length": Fixed(4), "config": config()}
    cheap, dear = (simulate_serving(requests, ServingModel(curve, **drafting)) for curve in (FLAT, STEEP))
    plain = [simulate_serving(requests, ServingModel(curve, config=config())) for curve in (FLAT, STEEP)]
    assert cheap.throughput > 1.2 * plain[0].throughput
    assert dear.throughput < plain[1].throughput


def test_long_contexts_take_longer():
    curve = CostProfile.by_context({0: {1: 0.01}, 1000: {1: 0.02}})
    result = simulate_serving([TokenRequest(0.0, 500, 2)], ServingModel(curve))
    assert result.ttft == pytest.approx([0.01])  # the prompt has nothing before it
    assert result.tbt == pytest.approx([0.015])


def test_load_costs_attainment():
    def attainment(gap: float) -> float:
        requests = [TokenRequest(gap * i, 200, 30) for i in range(60)]
        curve = CostProfile({1: 0.01, 512: 0.1})
        return simulate_serving(requests, ServingModel(curve)).slo_attainment(ttft=0.1, time_per_token=0.03)

    assert attainment(0.5) == 1.0
    assert attainment(0.01) < 0.5


def test_every_token_comes_out_even_when_memory_is_short():
    rng = np.random.default_rng(0)
    requests = [TokenRequest(0.02 * i, int(rng.integers(1, 60)), int(rng.integers(1, 60))) for i in range(50)]
    model = ServingModel(FLAT, 0.5, length=Fixed(3), num_pages=12, page_size=16)
    result = simulate_serving(requests, model)
    assert result.output_tokens.tolist() == [request.output_tokens for request in requests]
    assert (result.latency >= result.ttft).all() and (result.ttft > 0).all()


def test_a_seed_is_a_result():
    requests = [TokenRequest(0.02 * i, 20, 30) for i in range(10)]
    model = ServingModel(FLAT, 0.5, length=Fixed(3))
    first, same, other = (simulate_serving(requests, model, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.latency, same.latency)
    assert (first.latency != other.latency).any()


def config(**kwargs) -> SchedulerConfig:
    return SchedulerConfig(prefix_caching=False, **kwargs)


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("requests", lambda: simulate_serving([], ServingModel(FLAT))),
        ("requests", lambda: simulate_serving([TokenRequest(1, 1, 1), TokenRequest(0, 1, 1)], ServingModel(FLAT))),
        ("acceptance_rate", lambda: ServingModel(FLAT, acceptance_rate=1.1)),
        ("draft_seconds", lambda: ServingModel(FLAT, draft_seconds=-1)),
        ("prefix_caching", lambda: ServingModel(FLAT, config=SchedulerConfig())),
        ("prompt_token_ids", lambda: simulate_serving([TokenRequest(0, 4000, 1)], ServingModel(FLAT))),
        ("max_tokens", lambda: simulate_serving([TokenRequest(0, 4, 0)], ServingModel(FLAT))),
    ],
)
def test_bad_input_is_refused(field, call):
    with pytest.raises(InvalidParameter) as refused:
        call()
    assert refused.value.field == field


def test_a_planners_profile_prices_the_steps_of_a_request():
    """50 tokens in chunks of 32 and 18, then two decodes; what comes before each row is known."""
    rows = {1: 0.01, 64: 0.02}
    slow = {count: 3 * seconds for count, seconds in rows.items()}
    profile = TokenProfile({0: rows, 64: slow}, {0: slow, 64: rows}, step_overhead=0.001)
    result = simulate_serving(
        [TokenRequest(0.0, 50, 3)], ServingModel(profile, config=config(max_num_batched_tokens=32))
    )
    reading = profile.pass_seconds(0, 1, 0, 32) + profile.pass_seconds(0, 1, 0, 18, 32)
    assert result.ttft[0] == pytest.approx(reading)
    assert result.latency[0] == pytest.approx(reading + profile.pass_seconds(1, 1, 50) + profile.pass_seconds(1, 1, 51))


def test_every_request_of_a_pass_counts():
    profile = TokenProfile({0: {1: 0.01}}, segment_seconds={0: 0.002}, seats=4)
    result = simulate_serving([TokenRequest(0.0, 1, 2)] * 4, ServingModel(profile))
    assert result.seconds == pytest.approx(2 * (0.01 + 3 * 0.002))
