"""What each policy puts into a step, on small cases worked out by hand."""

from typing import Any

import pytest

from paceline.config import SchedulerName
from paceline.errors import InvalidParameter
from paceline.scheduling import PagePool, RequestState, SchedulerConfig
from paceline.scheduling.policies import make_policy
from paceline.types import SamplingParams
from tests.scheduling.fake_engine import FakeEngine


def engine(
    policy: SchedulerName, budget: int = 8, seats: int = 8, tile: int = 1, num_pages: int = 64, **limits: Any
) -> FakeEngine:
    config = SchedulerConfig(policy, max_num_batched_tokens=budget, max_num_seqs=seats, tile=tile, **limits)
    return FakeEngine(config, PagePool(num_pages, 4))


def add(fake: FakeEngine, name: str, prompt_length: int, max_tokens: int = 20) -> RequestState:
    prompt = [ord(name)] * prompt_length
    return fake.add(RequestState(name, prompt, SamplingParams(max_tokens=max_tokens), arrival_time=float(ord(name))))


def shapes(fake: FakeEngine, steps: int) -> list[dict[str, int]]:
    """Rows by request for each of the next steps; a decode is 0."""
    seen = []
    for _ in range(steps):
        fake.step()
        seen.append({g.request.request_id: g.num_prefill_tokens for g in fake.plans[-1].grants})
    return seen


def test_stall_free_runs_decodes_first_and_fills_up_with_chunks():
    fake = engine("stall_free", budget=8)
    add(fake, "a", 3)
    fake.step()
    add(fake, "b", 11)
    add(fake, "c", 4)
    assert shapes(fake, 4) == [
        {"a": 0, "b": 7},
        {"a": 0, "b": 4, "c": 3},
        {"a": 0, "b": 0, "c": 1},
        dict.fromkeys("abc", 0),
    ]


def test_stall_free_admits_only_as_many_as_can_decode_together():
    fake = engine("stall_free", budget=2)
    for name in "abc":
        add(fake, name, 1, max_tokens=3)
    assert shapes(fake, 4) == [{"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 0, "b": 0}, {"c": 1}]


def test_short_prompts_do_not_wait_for_a_long_one():
    fake = engine("stall_free", budget=8)
    add(fake, "a", 40, max_tokens=1)
    fake.step()
    for name, length in (("b", 30), ("c", 6), ("d", 3)):
        add(fake, name, length, max_tokens=1)
    assert shapes(fake, 8) == [
        {"c": 4, "a": 4},  # b is too long to overtake
        {"c": 2, "d": 2, "a": 4},
        {"d": 1, "a": 7},
        {"a": 8},
        {"a": 8},
        {"a": 1, "b": 7},
        {"b": 8},
        {"b": 8},
    ]


def test_a_long_prompt_takes_at_most_twice_as_long_for_short_ones():
    fake = engine("stall_free", budget=8)
    first, steps = add(fake, "a", 80, max_tokens=1), 0
    while first.first_token_time is None:
        fake.step()
        steps += 1
        if steps % 2:
            add(fake, chr(ord("b") + steps), 8, max_tokens=1)
    assert 15 <= steps <= 20


@pytest.mark.parametrize(("policy", "chunks"), [("stall_free", [127, 63, 51, 44, 39, 26]), ("sarathi", [127, 127, 96])])
def test_chunks_beside_decodes_shrink_as_their_attention_grows(policy, chunks):
    fake = engine(policy, budget=128, num_pages=256, balanced_context=128)
    add(fake, "a", 3)
    fake.step()
    add(fake, "b", 350)
    assert [step["b"] for step in shapes(fake, len(chunks))] == chunks
    assert set(shapes(fake, 1)[0].values()) == {0}


def test_chunks_alone_do_not_shrink_and_those_beside_decodes_stay_worth_a_pass():
    fake = engine("stall_free", budget=128, num_pages=256, balanced_context=1)
    add(fake, "a", 400, max_tokens=40)
    assert shapes(fake, 4) == [{"a": 128}, {"a": 128}, {"a": 128}, {"a": 16}]
    add(fake, "b", 200)
    assert [step["b"] for step in shapes(fake, 6)] == [127, 16, 16, 16, 16, 9]


def test_prompts_that_begin_alike_wait_beside_decodes_too():
    fake = engine("stall_free", budget=128, num_pages=4096, balanced_context=845)
    add(fake, "a", 3, max_tokens=200)
    fake.step()
    others = [RequestState(str(i), [9] * 1000 + [i], SamplingParams(max_tokens=1), arrival_time=200.0 + i)
              for i in range(3)]  # fmt: skip
    for each in others:
        fake.add(each)
    chunks = [rows for step in shapes(fake, 30) for name, rows in step.items() if name != "a"]
    assert [each.num_cached_tokens for each in others] == [0, 988, 988]  # all that was computed before its last step
    assert min(chunks[:-3]) >= 16


@pytest.mark.parametrize("context", [0.0, -1.0, float("nan")])
def test_a_context_that_is_not_above_0_is_refused(context):
    with pytest.raises(InvalidParameter, match="balanced_context"):
        SchedulerConfig(balanced_context=context)


def test_the_attention_of_a_chunk_counts_among_the_rows_of_a_step():
    fake = engine("stall_free", budget=128, num_pages=256, balanced_context=40)
    for name, length in (("a", 3), ("b", 200)):
        add(fake, name, length)
        fake.step()
    add(fake, "c", 30)
    add(fake, "d", 30)
    steps = shapes(fake, 8)
    assert steps[0] == {"a": 0, "c": 30, "d": 30, "b": 16}  # each of 16 after 127 tokens counts as four
    assert all(sum(step.values()) <= 128 for step in steps)


def test_the_first_prompt_keeps_its_half_beside_one_whose_rows_count_as_many():
    fake = engine("stall_free", budget=40, num_pages=512, balanced_context=1)
    add(fake, "a", 3, max_tokens=60)
    first = add(fake, "b", 500)
    fake.step()
    add(fake, "c", 200)
    for _ in range(8):
        before = first.num_computed
        fake.step()
        assert first.num_computed >= before + 16


def test_nobody_overtakes_one_with_a_smaller_priority_number():
    fake = engine("stall_free", budget=8)
    add(fake, "a", 40)
    fake.step()
    for name, length, priority in (("b", 30, 0), ("c", 2, 1)):
        fake.add(RequestState(name, [ord(name)] * length, SamplingParams(), priority=priority))
    assert shapes(fake, 2) == [{"a": 8}, {"a": 8}]


def test_prompts_that_begin_alike_wait_for_the_pages_of_the_first():
    fake = engine("stall_free", budget=8)
    for name, last in (("a", 1), ("b", 2), ("c", 3)):
        fake.add(RequestState(name, [9] * 20 + [last], SamplingParams(max_tokens=1), arrival_time=last))
    assert shapes(fake, 4) == [{"a": 8}, {"a": 8}, {"a": 5, "b": 3}, {"b": 2, "c": 1}]


def test_sarathi_keeps_its_budget_when_a_preempted_request_goes_on_from_the_cache():
    fake = FakeEngine(SchedulerConfig("sarathi", max_num_batched_tokens=2, max_num_seqs=4, tile=2), PagePool(8, 1))
    for name, length, max_tokens in (("a", 1, 6), ("b", 1, 5), ("c", 2, 2), ("d", 2, 3)):
        fake.add(RequestState(name, [1] * length, SamplingParams(max_tokens=max_tokens)))
    fake.drain()
    assert any(grant.request.num_preemptions for plan in fake.plans for grant in plan.grants)
    assert max(plan.num_rows for plan in fake.plans) == 2


def test_orca_never_cuts_a_prompt_and_decodes_stall_behind_it():
    fake = engine("orca", budget=8)
    add(fake, "a", 3)
    fake.step()
    add(fake, "b", 11)
    add(fake, "c", 4)
    assert shapes(fake, 2) == [{"a": 0, "b": 11}, {"a": 0, "b": 0, "c": 4}]


def test_orca_bounds_a_step_by_its_requests_and_lets_only_further_prompts_wait_for_rows():
    fake = engine("orca", budget=3, seats=6)
    for name in "abcdefg":
        add(fake, name, 2, max_tokens=9)
    assert shapes(fake, 7) == [{name: 0 for name in "abcdef"[:n]} | {"abcdef"[n]: 2} for n in range(6)] + [
        dict.fromkeys("abcdef", 0)
    ]
    assert [plan.num_rows for plan in fake.plans] == [2, 3, 4, 5, 6, 7, 6]


def test_orca_admits_no_more_than_the_reservations_allow():
    fake = engine("orca", budget=64, num_pages=12)
    add(fake, "a", 5, max_tokens=20)
    add(fake, "b", 5, max_tokens=21)
    add(fake, "c", 1, max_tokens=1)
    assert shapes(fake, 3) == [{"a": 5}, {"a": 0}, {"a": 0}]
    assert fake.scheduler.num_waiting == 2
    fake.drain()
    assert not any(plan.preempted for plan in fake.plans)


def test_sarathi_packs_one_chunk_and_keeps_to_whole_tiles():
    fake = engine("sarathi", budget=11, tile=4)
    add(fake, "a", 3)
    fake.step()
    add(fake, "b", 17)
    add(fake, "c", 6)
    assert shapes(fake, 5) == [
        {"a": 0, "b": 7},
        {"a": 0, "b": 7},
        {"a": 0, "b": 3},
        {"a": 0, "b": 0, "c": 6},
        dict.fromkeys("abc", 0),
    ]


def test_sarathi_leaves_a_row_for_the_chunk_when_decodes_are_many():
    fake = engine("sarathi", budget=4)
    for name in "abcd":
        add(fake, name, 1)
    for _ in range(4):
        fake.step()
    add(fake, "e", 2)
    assert shapes(fake, 1) == [{"a": 0, "b": 0, "c": 0, "e": 1}]


def test_sarathi_gives_its_only_row_to_requests_that_have_begun():
    fake = engine("sarathi", budget=1)
    first = add(fake, "a", 1, max_tokens=3)
    fake.step()
    add(fake, "b", 2)
    assert shapes(fake, 4) == [{"a": 0}, {"a": 0}, {"b": 1}, {"b": 1}]
    assert first.finish_time is not None


def test_request_level_forms_the_next_batch_when_the_last_one_is_done():
    fake = engine("request_level", budget=16, seats=2)
    short, long = add(fake, "a", 2, max_tokens=2), add(fake, "b", 2, max_tokens=4)
    late = add(fake, "c", 2, max_tokens=1)
    assert shapes(fake, 5) == [{"a": 2, "b": 2}, {"a": 0, "b": 0}, {"b": 0}, {"b": 0}, {"c": 2}]
    assert (short.finish_time, long.finish_time, late.finish_time) == (2.0, 4.0, 5.0)


def test_iteration_level_batching_starts_late_requests_sooner_than_static_batches():
    waits = {}
    policies: tuple[SchedulerName, ...] = ("orca", "request_level")
    for policy in policies:
        fake = engine(policy, budget=32, seats=2)
        for name, max_tokens in zip("abcd", (2, 9, 2, 2), strict=True):
            add(fake, name, 2, max_tokens)
        fake.drain()
        waits[policy] = len(fake.plans)
    assert waits["orca"] < waits["request_level"]


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(InvalidParameter, match="stall_free, orca, sarathi, request_level"):
        make_policy("fifo")


@pytest.mark.parametrize("field", ["max_num_batched_tokens", "max_num_seqs", "max_model_len", "tile"])
def test_numbers_below_one_are_refused(field: str):
    with pytest.raises(InvalidParameter, match=field):
        zero: dict[str, Any] = {field: 0}
        SchedulerConfig(**zero)


def test_a_tile_wider_than_the_budget_is_refused():
    with pytest.raises(InvalidParameter, match="tile"):
        SchedulerConfig(max_num_batched_tokens=8, tile=16)
