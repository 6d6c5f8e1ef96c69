"""The latency model of tensor-parallel drafts: hand-worked numbers, the paper's, and what depth does."""

import pytest

from paceline.errors import InvalidParameter
from paceline.theory import best_length
from paceline.theory.distributed_draft import (
    CHINCHILLA,
    TENSOR_PARALLEL_SIZES,
    TPU_V4,
    WIDE_DRAFT,
    Chip,
    ModelSize,
    all_reduce_seconds,
    draft_plan,
    latency_curves,
    pass_seconds,
    plans_table,
)

SLOW = Chip(bandwidth=100.0, peak=1000.0, hop_seconds=0.5)


def test_one_token_by_hand():
    model = ModelSize(1000, 3, bytes_per_parameter=2)
    assert pass_seconds(model, SLOW, 1) == 20  # 2000 bytes at 100 per second; 2000 operations take 2 seconds
    assert all_reduce_seconds(SLOW, 4) == 1.0  # two exchanges
    assert pass_seconds(model, SLOW, 4) == 20 / 4 + 6 * 1.0


def test_many_rows_are_bound_by_arithmetic():
    model = ModelSize(1000, 3)
    assert pass_seconds(model, SLOW, 1, rows=10) == 20
    assert pass_seconds(model, SLOW, 1, rows=20) == 40


def test_the_papers_target_takes_the_printed_time_and_its_draft_a_small_part_of_it():
    """Chen et al. 2023 print 14.1 ms and 1.8 ms on 16 chips; the model leaves out what is no layer of the draft."""
    assert 1e3 * pass_seconds(CHINCHILLA, TPU_V4, 16) == pytest.approx(14.1, abs=0.05)
    assert 0.8 < 1e3 * pass_seconds(WIDE_DRAFT, TPU_V4, 16) < 1.8


def test_depth_not_size_sets_the_cost_of_a_draft_on_many_chips():
    deep, shallow = ModelSize(4e9, 36), WIDE_DRAFT
    assert pass_seconds(deep, TPU_V4, 16) > 3 * pass_seconds(shallow, TPU_V4, 16)
    assert pass_seconds(deep, TPU_V4, 1) == pass_seconds(shallow, TPU_V4, 1)
    [wide_curve, deep_curve] = latency_curves({"wide": shallow, "deep": deep}, TPU_V4).series
    assert [TENSOR_PARALLEL_SIZES[i] for i in (*wide_curve.marked, *deep_curve.marked)] == [16, 8]


def test_a_plan_is_the_best_length_at_its_cost_ratio():
    free_rows = Chip(bandwidth=1.0, peak=1e12, hop_seconds=0.0)
    plan = draft_plan(ModelSize(1, 1), ModelSize(20, 1), free_rows, 1, 1, alpha=0.7)
    assert plan.cost_ratio == pytest.approx(0.05)
    best = best_length(0.7, 0.05)
    assert (plan.num_draft_tokens, plan.speedup) == (best.num_draft_tokens, pytest.approx(best.speedup))


def test_handing_over_is_charged_to_a_draft_on_chips_of_another_number():
    plans = [draft_plan(WIDE_DRAFT, CHINCHILLA, TPU_V4, n, 16, 0.8, hand_over_seconds=0.002) for n in (8, 16)]
    free = [draft_plan(WIDE_DRAFT, CHINCHILLA, TPU_V4, n, 16, 0.8) for n in (8, 16)]
    assert plans[0].speedup < free[0].speedup
    assert plans[1] == free[1]
    [first, second] = plans_table(free).rows
    assert (first[0], second[0]) == (8, 16)
    assert first[1] == pytest.approx(1e3 * free[0].draft_seconds)


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: Chip(0, 1, 0), "bandwidth"),
        (lambda: Chip(1, 1, -1), "hop_seconds"),
        (lambda: ModelSize(1, 0), "num_layers"),
        (lambda: pass_seconds(WIDE_DRAFT, TPU_V4, 0), "tensor_parallel_size"),
        (lambda: draft_plan(WIDE_DRAFT, CHINCHILLA, TPU_V4, 4, 16, 1.2), "alpha"),
        (lambda: draft_plan(WIDE_DRAFT, CHINCHILLA, TPU_V4, 4, 16, 0.5, -1.0), "hand_over_seconds"),
    ],
)
def test_impossible_numbers_are_refused(build, field):
    with pytest.raises(InvalidParameter, match=field):
        build()
