"""Bubbles: small pipelines worked out by hand, the books of idle time, and that equal micro-batches leave none."""

from types import SimpleNamespace

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement.cost import Device
from paceline.placement.pipeline_bubbles import (
    MicroBatch,
    arithmetic_stage,
    kind_of,
    measured_stage,
    simulate_pipeline,
)
from paceline.scheduling import SchedulerConfig
from paceline.speculation import CostProfile
from paceline.theory import intensity
from paceline.theory.piggyback import aligned_chunk

A6000 = Device(intensity.A6000.operations_per_second, intensity.A6000.bytes_per_second)


def by_rows(plan):
    """One second per row and stage."""
    return float(plan.num_rows)


def config(policy="orca", seqs=1, budget=64, **limits):
    limits = {"max_model_len": 512, "tile": 1, "prefix_caching": False} | limits
    return SchedulerConfig(policy, budget, seqs, **limits)


def test_one_request_in_one_stage_is_never_waited_for():
    result = simulate_pipeline([(5, 3)], config(), 1, by_rows)
    assert result.seconds == result.busy == 5 + 1 + 1
    assert sum(result.bubbles.values()) == result.bubble_share == 0
    assert (result.num_tokens, result.num_batches) == (8, 3)


def test_equal_micro_batches_leave_no_bubbles():
    result = simulate_pipeline([(4, 3)] * 2, config(), 2, lambda plan: 1.0)
    assert result.bubble_share == 0
    assert result.seconds == 3 * 2 + 1  # six micro-batches, and one stage more to go through


def test_prompts_of_different_length():
    """The long one first keeps both stages busy; the short one first makes stage two wait for the long one."""
    long_first = simulate_pipeline([(4, 1), (1, 1)], config(), 2, by_rows)
    assert long_first.seconds == 4 + 4 + 1
    assert sum(long_first.bubbles.values()) == 0
    short_first = simulate_pipeline([(1, 1), (4, 1)], config(), 2, by_rows)
    assert short_first.bubbles == {"prefill_lengths": 3, "prefill_decode": 0, "contexts": 0, "drain": 0}
    assert short_first.request_bubbles.tolist() == [0, 3]


def test_a_prompt_next_to_a_decode():
    """Stage one: a's prompt [0, 1], b's [1, 2], a decodes [2, 3], c's prompt in b's place [3, 7]; stage two waits."""
    result = simulate_pipeline([(1, 2), (1, 1), (4, 1)], config(), 2, by_rows)
    assert result.bubbles == {"prefill_lengths": 0, "prefill_decode": 3, "contexts": 0, "drain": 0}
    assert result.request_bubbles.tolist() == [0, 0, 3]
    assert result.seconds == 11


def test_decodes_behind_different_contexts():
    cost = CostProfile.by_context({0: {1: 2.0}, 100: {1: 4.0}})
    result = simulate_pipeline([(10, 40), (100, 40)], config(budget=512), 2, measured_stage(cost, 2))
    assert result.bubbles["contexts"] > 30  # 40 times almost 2 - 1 s, where the prompts cost a moment
    assert sum(result.bubbles.values()) < 1.1 * result.bubbles["contexts"]


@pytest.mark.parametrize("policy", ["orca", "sarathi", "stall_free"])
def test_every_second_of_every_stage_is_accounted_for(policy):
    rng = np.random.default_rng(3)
    lengths = [(int(p), int(o)) for p, o in zip(rng.integers(1, 90, 60), rng.integers(1, 30, 60), strict=True)]
    stages = 3
    durations = []

    def seconds(plan):
        durations.append(1 + 0.1 * plan.num_rows)
        return durations[-1]

    result = simulate_pipeline(lengths, config(policy, seqs=4, budget=16), stages, seconds)
    assert result.busy == pytest.approx(stages * sum(durations))
    first, last = durations[0], durations[-1]  # stages start one after the other, and end so: the last pass is alone
    ends = stages * (stages - 1) / 2 * (first + last)
    assert result.busy + sum(result.bubbles.values()) + ends == pytest.approx(stages * result.seconds)
    assert result.num_tokens == sum(map(sum, lengths))


def test_chunks_with_decodes_beside_shrink_the_bubbles():
    rng = np.random.default_rng(0)
    lengths = [(int(p), max(1, int(p) // 10)) for p in rng.integers(100, 400, 80)]
    cost = CostProfile({1: 1.0, 32: 1.1, 64: 1.5, 512: 10.0})
    orca, sarathi = (
        simulate_pipeline(lengths, config(policy, seqs=5, budget=64), 4, measured_stage(cost, 4))
        for policy in ("orca", "sarathi")
    )
    assert orca.num_tokens == sarathi.num_tokens
    assert np.median(orca.request_bubbles) > 2 * np.median(sarathi.request_bubbles)
    assert orca.bubbles["prefill_lengths"] > 0
    assert orca.bubbles["prefill_decode"] > 0
    assert sarathi.throughput > orca.throughput


def test_kinds():
    long, short, decode = MicroBatch(9, (0,)), MicroBatch(2, (1,)), MicroBatch(0, (2,))
    assert kind_of(long, short) == kind_of(short, long) == "prefill_lengths"
    assert kind_of(long, decode) == kind_of(decode, short) == "prefill_decode"
    assert kind_of(decode, decode) == kind_of(long, long) == "contexts"


def test_arithmetic_by_hand():
    device = Device(peak=1e6, bandwidth=1e12)
    stage = arithmetic_stage(num_layers=2, hidden_size=10, device=device, tile=8)
    plans = []

    def seconds(plan):
        plans.append(plan)
        return stage(plan)

    result = simulate_pipeline([(3, 2)], config(), 1, seconds)
    parameters = 12 * 100 * 2
    prefill = 2 * parameters * 8 / 1e6 + 4 * 10 * 2 * 6 / 1e6  # 3 rows round up to 8 and attend to 1 + 2 + 3 tokens
    decode = 2 * parameters * 8 / 1e6 + 4 * 10 * 2 * 4 / 1e6  # one row attends to 4
    assert result.seconds == pytest.approx(prefill + decode)
    slow_memory = arithmetic_stage(2, 10, Device(peak=1e30, bandwidth=100.0))
    assert slow_memory(plans[1]) == pytest.approx((2 * parameters + 4 * 10 * 2 * 4) / 100)


def _pass(*parts):
    """A micro-batch of (rows, first position) of each request."""
    grants = [SimpleNamespace(num_rows=rows, start=start) for rows, start in parts]
    return SimpleNamespace(num_rows=sum(rows for rows, _ in parts), grants=grants)


def test_a_row_beyond_the_tile_costs_a_tile():
    """LLaMA-13B on an A6000 with tiles of 128 rows; published are 55, 69.8 and 92.33 ms of 128, 256 and 257 rows.

    The first step (1.27) is the published one: 128 rows are bound by reading weights. The second is at least as high as
    the published 1.32, since the model has no costs besides.
    """
    tiled, smooth = (arithmetic_stage(40, 5120, A6000, tile=tile) for tile in (128, 1))
    tile, two, more = (tiled(_pass((rows, 0))) for rows in (128, 256, 257))
    assert two / tile == pytest.approx(69.8 / 55, abs=0.01)
    assert 92.33 / 69.8 < more / two < 1.51
    assert tiled(_pass((384, 0))) == pytest.approx(more, rel=0.01), "the rest of the tile is free"
    assert smooth(_pass((257, 0))) / smooth(_pass((256, 0))) < 1.005, "without a tile the step is not seen"


@pytest.mark.parametrize("batch", [2, 4, 18])
def test_the_aligned_chunk_and_its_decodes_fill_the_tiles(batch):
    """What `sarathi` plans beside B - 1 decodes is `aligned_chunk`, and one prompt token more costs a tile."""
    stage, plans = arithmetic_stage(40, 5120, A6000, tile=128), []

    def seconds(plan):
        plans.append(plan)
        return stage(plan)

    lengths = [(100, 60)] * (batch - 1) + [(600, 2)]
    simulate_pipeline(lengths, config("sarathi", batch, 256, max_model_len=1024, tile=128), 1, seconds)
    chunks = [
        grant.num_prefill_tokens
        for plan in plans
        if len(plan.grants) == batch
        for grant in plan.grants
        if grant.num_prefill_tokens > 1
    ]
    chunk = aligned_chunk(256, batch)
    assert chunk in chunks
    decodes = [(1, 100)] * (batch - 1)
    fitting, beyond = (stage(_pass((rows, 0), *decodes)) for rows in (chunk, chunk + 1))
    assert beyond / fitting > 1.3
    assert stage(_pass((chunk - 1, 0), *decodes)) == pytest.approx(fitting, rel=0.01)


def test_bad_input_is_refused():
    with pytest.raises(InvalidParameter, match="lengths"):
        simulate_pipeline([], config(), 2, by_rows)
    with pytest.raises(InvalidParameter, match="prefix_caching"):
        simulate_pipeline([(1, 1)], config(prefix_caching=True), 2, by_rows)
