"""Random traffic through every policy: tokens and pages are conserved, budgets kept, texts unchanged."""

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.scheduling import PagePool, RequestState, Scheduler, SchedulerConfig, Status, StepResult
from paceline.speculation import Fixed, Heuristic
from paceline.speculation.records import MEMORY, PRIOR_DRAFTS
from paceline.types import SamplingParams
from tests.scheduling.fake_engine import FakeEngine, plain_text
from tests.speculation.drafts import by_level

POLICIES = ("stall_free", "orca", "sarathi", "request_level")


def request(name: str, prompt: list[int], max_tokens: int = 4, **fields) -> RequestState:
    return RequestState(name, prompt, SamplingParams(max_tokens=max_tokens), **fields)


def engine(
    num_pages: int = 64, page_size: int = 4, length=None, seed: int = 0, branches: bool = False, **config: Any
) -> FakeEngine:
    pool = PagePool(num_pages, page_size)
    return FakeEngine(SchedulerConfig(**{"tile": 1, **config}), pool, length, seed=seed, branches=branches)


traffic = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.lists(st.integers(0, 1), min_size=1, max_size=18),
            "max_tokens": st.integers(1, 12),
            "priority": st.integers(0, 2),
            "gap": st.integers(0, 4),
            "samples": st.integers(1, 3),
            "drafts": st.sampled_from((True, True, False)),
            "timeout": st.one_of(st.none(), st.none(), st.integers(0, 9)),
            "abort_after": st.one_of(st.none(), st.none(), st.integers(0, 6)),
        }
    ),
    min_size=1,
    max_size=8,
)
configs = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(POLICIES),
        "max_num_batched_tokens": st.integers(4, 30),
        "max_num_seqs": st.integers(1, 5),
        "prefix_caching": st.booleans(),
        "tile": st.integers(1, 4),
        "num_lookahead_slots": st.integers(0, 2),
    }
)


@settings(max_examples=250, deadline=None)
@given(
    traffic, configs, st.integers(8, 24), st.integers(1, 5), st.integers(0, 5), st.booleans(),
    st.one_of(st.none(), st.integers(0, 12)), st.integers(0, 99),
)  # fmt: skip
def test_any_traffic_is_served_as_if_each_request_were_alone(
    specs, config, num_pages, page_size, drafts, branches, restart_after, seed
):
    fake = engine(num_pages, page_size, Fixed(drafts), seed, branches, **config)
    added, aborts = [], {}
    for number, spec in enumerate(specs):
        states = samples(f"r{number}", spec, now=float(len(fake.plans)))
        state = states[-1]
        if state.most_slots > num_pages * page_size:
            with pytest.raises(InvalidParameter, match="max_tokens"):
                fake.add(state)
            continue
        added += map(fake.add, states)
        if spec["abort_after"] is not None:
            aborts[len(fake.plans) + spec["abort_after"]] = state.request_id
        for _ in range(spec["gap"]):
            step_and_check(fake, aborts, restart_after)
    while fake.scheduler.has_work:
        step_and_check(fake, aborts, restart_after)
        assert len(fake.plans) < 2000, "somebody starves"
    assert fake.scheduler.pool.num_free == num_pages
    for state in added:
        assert state.status is Status.FINISHED and not state.page_table
        text = plain_text(list(state.prompt_token_ids), state.num_output_tokens)
        assert state.output_token_ids == text
        if state.finish_reason == "timeout":
            assert state.deadline is not None and state.finish_time >= state.deadline
        elif state.finish_reason != "abort":
            assert state.num_output_tokens == state.params.max_tokens and state.finish_reason == "length"


def samples(name: str, spec: dict, now: float) -> list[RequestState]:
    """The samples of one prompt as the engine makes them; the first one leads."""
    deadline = None if spec["timeout"] is None else now + spec["timeout"]
    common = {"priority": spec["priority"], "arrival_time": now, "deadline": deadline}
    common["drafts"] = spec["drafts"]
    leader = request(f"{name}-0", spec["prompt"], spec["max_tokens"], **common)
    ids = range(1, spec["samples"])
    return [leader, *(request(f"{name}-{i}", spec["prompt"], spec["max_tokens"], leader=leader, **common) for i in ids)]


def step_and_check(fake: FakeEngine, aborts: dict[int, str], restart_after: int | None = None) -> None:
    scheduler = fake.scheduler
    if len(fake.plans) == restart_after:
        scheduler.restart()
        fake.lose_the_cache()
        scheduler.check_integrity()
    if len(fake.plans) in aborts:
        scheduler.abort(aborts[len(fake.plans)])
    had_work, queued = scheduler.has_work, {state.request_id for state in scheduler._waiting}
    decoding = {state.request_id for state in scheduler._running if state.status is Status.RUNNING}
    commits = fake.step()
    plan, config = fake.plans[-1], scheduler.config
    scheduler.check_integrity()
    assert bool(plan.grants or plan.expired) == had_work
    assert {c.request.request_id for c in commits} == {g.request.request_id for g in plan.grants}
    assert all(grant.draft_budget == 0 for grant in plan.grants if not grant.is_decode)
    for grant in plan.grants[: plan.batch.num_decodes]:
        request = grant.request
        left = request.output_limit - (grant.start + 1 - request.num_prompt_tokens)
        assert grant.draft_depth <= min(left - 1, grant.draft_budget)
        assert request.drafts or not grant.draft_budget
        assert scheduler._branches or grant.draft_depth == grant.draft_budget
    prefills = [grant for grant in plan.grants if not grant.is_decode]
    assert not (plan.preempted and queued & {g.request.request_id for g in prefills}), "admitted while memory is short"
    if plan.num_rows > config.max_num_batched_tokens:
        assert not any(grant.draft_budget for grant in plan.grants)
        assert config.policy == "orca" and len(prefills) <= 1
    if config.policy == "orca" or config.policy == "request_level":
        assert not plan.preempted
    if config.policy != "sarathi":
        decoding -= {r.request_id for r in plan.expired}
        served = {g.request.request_id for g in plan.grants if g.is_decode} | {r.request_id for r in plan.preempted}
        assert decoding <= served, "a decode was paused"
    if config.policy == "sarathi":
        assert len(prefills) <= 1


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_priorities_start_in_order_of_arrival(policy):
    fake = engine(num_pages=12, page_size=4, max_num_batched_tokens=16, max_num_seqs=3, policy=policy)
    added = [fake.add(request(f"r{i}", [1] * (3 + 5 * (i % 3)), 3, arrival_time=float(i))) for i in range(9)]
    fake.drain()
    for earlier, later in pairwise(added):
        assert (earlier.first_scheduled_time or 0) <= (later.first_scheduled_time or 0)
        assert (earlier.first_token_time or 0) <= (later.first_token_time or 0)
    assert (added[-1].first_scheduled_time or 0) > 0


def test_a_smaller_priority_number_overtakes_those_that_wait():
    fake = engine(max_num_seqs=1)
    late = fake.add(request("late", [1, 2], priority=1, arrival_time=0.0))
    early = fake.add(request("early", [1, 2], priority=0, arrival_time=5.0))
    fake.drain()
    assert (early.first_scheduled_time, late.first_scheduled_time) == (0.0, 4.0)


def test_memory_shortage_preempts_the_last_request_and_its_text_survives():
    fake = engine(num_pages=6, page_size=2, prefix_caching=False)
    first = fake.add(request("first", [1, 2, 3, 4], 6, arrival_time=0.0))
    second = fake.add(request("second", [4, 3, 2, 1], 6, arrival_time=1.0))
    fake.drain()
    assert first.num_preemptions == 0 and second.num_preemptions >= 1
    preempted = [state for plan in fake.plans for state in plan.preempted]
    assert set(preempted) == {second}
    assert second.output_token_ids == plain_text([4, 3, 2, 1], 6)


def test_the_less_urgent_request_is_preempted_though_it_came_first():
    fake = engine(num_pages=6, page_size=2, prefix_caching=False)
    humble = fake.add(request("humble", [1, 2, 3, 4], 6, priority=1, arrival_time=0.0))
    urgent = fake.add(request("urgent", [4, 3, 2, 1], 6, priority=0, arrival_time=1.0))
    fake.drain()
    assert humble.num_preemptions >= 1 and urgent.num_preemptions == 0


def test_pages_won_by_a_preemption_are_not_given_to_a_newcomer_in_the_same_step():
    fake = engine(num_pages=6, page_size=2, prefix_caching=False)
    fake.add(request("first", [1, 2, 3, 4], 6, priority=1))
    fake.add(request("last", [4, 3, 2, 1], 6, priority=2))
    while not fake.plans or fake.scheduler.pool.num_free:
        fake.step()
    fake.add(request("urgent", [1, 2], 2, priority=0))
    while not fake.plans[-1].preempted:
        fake.step()
    assert fake.scheduler.pool.num_free >= 1 and fake.plans[-1].num_rows == 1
    fake.step()
    assert [grant.request.request_id for grant in fake.plans[-1].grants] == ["first", "urgent"]


@pytest.mark.parametrize(("slots", "pages"), [(0, 1), (1, 2)])
def test_a_page_for_the_slot_after_the_last_token_is_taken_early(slots, pages):
    fake = engine(page_size=4, prefix_caching=False, num_lookahead_slots=slots)
    state = fake.add(request("a", [1, 2, 3], 8))
    fake.step()
    held = []
    while state.num_tokens < 7:
        assert state.num_tokens == 4 + len(held)
        fake.step()
        held.append(len(state.page_table))
    assert held == [pages, 2, 2]
    fake.drain()
    assert fake.scheduler.pool.num_free == fake.scheduler.pool.num_pages


def test_lookahead_pages_stay_a_requests_own_until_somebody_needs_them():
    fake = engine(num_pages=16, page_size=4, prefix_caching=False, num_lookahead_slots=9)
    both = [fake.add(request(name, [1, 2, 3], 20)) for name in "ab"]
    fake.step()
    fake.step()
    tables = [list(state.page_table) for state in both]
    for _ in range(3):
        fake.step()
        assert [state.page_table.tolist()[: len(own)] for state, own in zip(both, tables, strict=True)] == tables
        assert all(len(state.page_table) * 4 >= state.num_tokens + 8 for state in both)
    waiting = fake.add(request("c", list(range(40)), 4))
    fake.step()
    assert not waiting.page_table
    fake.step()
    assert waiting.page_table, "its pages were lookahead pages of others a step before"


def test_nobody_is_preempted_for_a_slot_after_the_last_token():
    texts = []
    for slots in (0, 1):
        fake = engine(num_pages=4, page_size=4, prefix_caching=False, num_lookahead_slots=slots)
        both = [fake.add(request(name, [1, 2, 3], 6)) for name in "ab"]
        fake.drain()
        assert [state.num_preemptions for state in both] == [0, 0]
        texts.append([state.output_token_ids for state in both])
    assert texts[0] == texts[1]


def test_a_cached_prefix_saves_rows_and_never_the_last_token():
    prompt = [1, 2, 3, 4, 1, 2, 3, 4]
    cold, warm = engine(prefix_caching=False), engine(prefix_caching=True)
    for fake in (cold, warm):
        for name in ("a", "b"):
            fake.add(request(name, prompt))
            fake.drain()
    assert cold.rows_computed == 2 * (8 + 3)
    assert warm.rows_computed == (8 + 3) + (4 + 3)
    assert [c.token_ids for c in warm.commits] == [c.token_ids for c in cold.commits]


def test_the_prefix_of_an_answered_turn_serves_the_next_turn():
    fake = engine(page_size=4)
    first = fake.add(request("turn1", [1, 2, 3], 6))
    fake.drain()
    second = fake.add(request("turn2", [*first.token_ids, 1, 1], 2))
    fake.drain()
    assert second.num_cached_tokens == 8 == (first.num_tokens - 1) // 4 * 4


def test_drafts_shrink_before_anything_else_and_evenly():
    fake = engine(length=Fixed(6), max_num_batched_tokens=12, policy="stall_free")
    for i in range(3):
        fake.add(request(f"r{i}", [1, 2], 40, arrival_time=float(i)))
    fake.step()
    plan = fake.scheduler.schedule(now=1.0)
    assert [grant.draft_budget for grant in plan.grants] == [3, 3, 3]
    assert [grant.wanted_budget for grant in plan.grants] == [6, 6, 6]
    fake.add(request("long", [1] * 8, 2, arrival_time=9.0))
    plan = fake.scheduler.schedule(now=2.0)
    assert [grant.num_rows for grant in plan.grants] == [2, 1, 1, 8]
    assert [grant.draft_budget for grant in plan.grants] == [1, 0, 0, 0]


def test_a_draft_never_reaches_beyond_the_last_token():
    fake = engine(length=Fixed(8))
    fake.add(request("r", [1, 2], 4))
    fake.step()
    assert fake.scheduler.schedule(now=1.0).grants[0].draft_budget == 2


def test_rejected_rows_free_their_pages_and_are_never_found_by_a_lookup():
    pool = PagePool(8, 2)
    scheduler = Scheduler(SchedulerConfig(tile=1), pool, Fixed(6))
    state = request("r", [1, 2, 3], 12)
    scheduler.add(state)
    scheduler.schedule(0.0)
    scheduler.update([StepResult("r", 3, (4,))], 0.0)
    [grant] = scheduler.schedule(1.0).grants
    assert grant.draft_budget == 6 and len(state.page_table) == 5
    scheduler.update([StepResult("r", 0, (5, 0), num_draft_tokens=6, level_rejected=True)], 1.0)
    assert state.token_ids == [1, 2, 3, 4, 5, 0] and state.num_computed == 5
    assert len(state.page_table) == 3 and pool.num_cached == 2
    scheduler.check_integrity()


def test_results_of_an_aborted_request_are_skipped_and_its_output_kept():
    fake = engine()
    fake.add(request("gone", [1, 2], 9))
    stays = fake.add(request("stays", [2, 1], 3))
    fake.step()
    plan = fake.scheduler.schedule(now=1.0)
    gone = fake.scheduler.abort("gone", now=1.5)
    assert (
        gone is not None and gone.finish_reason == "abort" and gone.num_output_tokens == 1 and gone.finish_time == 1.5
    )
    results = [StepResult(grant.request.request_id, 0, (0,)) for grant in plan.grants]
    assert [commit.request for commit in fake.scheduler.update(results, now=2.0)] == [stays]
    assert fake.scheduler.abort("gone") is None
    fake.scheduler.check_integrity()


def test_counters_see_only_what_lies_before_the_stop():
    scheduler = Scheduler(SchedulerConfig(tile=1), PagePool(8, 4), Fixed(5))
    state = request("r", [1, 2], 9)
    state.params = SamplingParams(max_tokens=9, stop_token_ids=[3])
    scheduler.add(state)
    scheduler.schedule(0.0)
    scheduler.update([StepResult("r", 2, (4,))], 0.0)
    scheduler.schedule(1.0)
    [commit] = scheduler.update([StepResult("r", 0, (4, 3, 4, 0), num_draft_tokens=5, level_rejected=True)], 1.0)
    assert commit.token_ids == (4, 3) and commit.finish_reason == "stop"
    assert commit.outcome.num_accepted == 2 and not commit.outcome.level_rejected
    assert state.draft_stats.last_accepted_tokens == 2 and state.output_token_ids == [4, 4, 3]
    _, tested = by_level(state.draft_stats.rates)
    assert sum(tested) == pytest.approx(PRIOR_DRAFTS * MEMORY + 2), "only what was committed"
    assert scheduler.pool.num_free == 8 and not scheduler.has_work


def test_bad_requests_are_refused_at_the_door():
    scheduler = Scheduler(SchedulerConfig(tile=1, max_model_len=16), PagePool(3, 4))
    scheduler.add(request("twice", [1], 2))
    with pytest.raises(InvalidParameter, match="request_id"):
        scheduler.add(request("twice", [1], 2))
    with pytest.raises(InvalidParameter, match=r"prompt_token_ids.*at most 15 tokens$"):
        scheduler.add(request("long", [1] * 16, 1))
    small = Scheduler(SchedulerConfig(tile=1, max_model_len=12), PagePool(3, 4))
    with pytest.raises(InvalidParameter, match=r"at most 11 tokens, or raise kv_cache_memory_bytes$"):
        small.add(request("long", [1] * 16, 1))
    with pytest.raises(InvalidParameter, match=r"max_tokens.*12"):
        scheduler.add(request("big", [1] * 6, 9))
    with pytest.raises(InvalidParameter, match="prompt_token_ids"):
        request("empty", [])
    assert scheduler.num_waiting == 1


def test_output_is_cut_at_the_length_of_the_model():
    fake = engine(max_model_len=10)
    state = fake.add(request("r", [1] * 7, 50))
    fake.drain()
    assert state.num_tokens == 10 and state.finish_reason == "length"


@pytest.mark.parametrize(
    "result",
    [
        StepResult("other", 2, (1,)),
        StepResult("r", 1, ()),
        StepResult("r", 2, ()),
        StepResult("r", 2, (1, 2)),
        StepResult("r", 2, (1,), num_draft_tokens=1),
    ],
)
def test_a_result_that_was_not_granted_is_refused(result):
    scheduler = Scheduler(SchedulerConfig(tile=1), PagePool(4, 4))
    scheduler.add(request("r", [1, 2]))
    scheduler.schedule(0.0)
    with pytest.raises(InvalidParameter, match="results"):
        scheduler.update([result], 0.0)


def test_books_that_disagree_are_noticed():
    fake = engine()
    state = fake.add(request("r", [1, 2]))
    fake.step()
    fake.scheduler.check_integrity()
    state.num_computed = state.num_tokens
    with pytest.raises(RuntimeError, match="a state it cannot be in"):
        fake.scheduler.check_integrity()


def test_an_adaptive_length_leaves_the_text_alone():
    for seed in range(5):
        fake = engine(num_pages=9, page_size=2, length=Heuristic(start=3), seed=seed, max_num_batched_tokens=9)
        states = [fake.add(request(f"r{i}", [i, 1], 9, arrival_time=float(i))) for i in range(4)]
        fake.drain()
        assert [s.output_token_ids for s in states] == [plain_text([i, 1], 9) for i in range(4)]


def test_a_new_request_starts_from_the_rate_of_those_before_it():
    fake = engine(length=Fixed(4))
    scheduler = fake.scheduler
    scheduler.add(request("r", [1], 40))
    scheduler.schedule(0.0)
    scheduler.update([StepResult("r", 1, (0,))], 0.0)
    for _ in range(5):
        scheduler.schedule(1.0)
        scheduler.update([StepResult("r", 0, (0,), num_draft_tokens=4, level_rejected=True)], 1.0)
    late = request("late", [1])
    scheduler.add(late)
    assert late.draft_stats.rates.acceptance == pytest.approx(scheduler.draft_rates.acceptance)
    assert late.draft_stats.rates.acceptance < 0.5


def three_samples(fake: FakeEngine, prompt: list[int], max_tokens: int = 6) -> list[RequestState]:
    leader = fake.add(request("r-0", prompt, max_tokens))
    return [leader, *(fake.add(request(f"r-{i}", prompt, max_tokens, leader=leader)) for i in (1, 2))]


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("length", [1, 4, 5, 6, 11])
def test_samples_of_a_prompt_compute_it_once_and_share_its_pages(length, prefix_caching):
    fake = engine(page_size=4, max_num_batched_tokens=64, prefix_caching=prefix_caching)
    states = three_samples(fake, [1] * length)
    fake.step()
    fake.step()
    full = (length - 1) // 4
    assert [state.page_table[:full] for state in states] == [states[0].page_table[:full]] * 3
    assert len({state.page_table[full] for state in states}) == 3
    assert fake.rows_computed == length + 1 + 2
    fake.drain()
    assert [s.output_token_ids for s in states] == [plain_text([1] * length, 6)] * 3


def test_a_page_shared_in_part_must_be_copied():
    fake = engine(page_size=4, max_num_batched_tokens=64)
    three_samples(fake, [1] * 6)
    fake.step()
    plan = fake.scheduler.schedule(1.0)
    assert len(plan.copies) == 2 and len({destination for _, destination in plan.copies}) == 2
    with pytest.raises(AssertionError):  # the copies were not made
        fake.run(plan.grants[1])


def test_when_the_first_sample_goes_the_next_one_leads():
    fake = engine(page_size=4, max_num_batched_tokens=4)
    leader, second, third = three_samples(fake, [1] * 10)
    fake.step()
    assert fake.scheduler.num_waiting == 2
    fake.scheduler.abort("r-0")
    fake.scheduler.check_integrity()
    assert second.leader is None and third.leader is second and leader.finish_reason == "abort"
    fake.scheduler.abort("r-2")
    fake.drain()
    assert second.output_token_ids == plain_text([1] * 10, 6) and third.finish_reason == "abort"


def test_a_request_ends_when_its_time_is_up_wherever_it_stands():
    fake = engine(max_num_seqs=1)
    running = fake.add(request("running", [1, 2], 30, deadline=3.0))
    waiting = fake.add(request("waiting", [1, 2], 30, deadline=2.0))
    lucky = fake.add(request("lucky", [1, 2], 2, deadline=99.0))
    fake.drain()
    assert [s.finish_reason for s in (running, waiting, lucky)] == ["timeout", "timeout", "length"]
    assert running.num_output_tokens == 3 and waiting.num_output_tokens == 0
    assert [s.request_id for plan in fake.plans for s in plan.expired] == ["waiting", "running"]


def test_far_deadlines_of_finished_requests_are_not_kept():
    fake = engine(num_pages=40, page_size=4)
    for number in range(1000):
        fake.add(request(f"r{number}", [1, 2], 1, deadline=1e9))
        fake.step()
    waiting = fake.add(request("waiting", [1, 2], 4, deadline=2e9))
    assert len(fake.scheduler._deadlines) < 100
    assert fake.scheduler.schedule(3e9).expired == (waiting,)


def test_what_a_request_finds_again_after_a_preemption_is_no_prompt_token_found():
    fake = engine(num_pages=6, page_size=2)
    fake.add(request("first", [1, 2, 3, 4], 6, arrival_time=0.0))
    second = fake.add(request("second", [4, 3, 2, 1], 6, arrival_time=1.0))
    fake.drain()
    assert second.num_preemptions and second.num_cached_tokens == 0 and fake.scheduler.prefix_cache_hits > 0


def test_prefix_hits_are_counted():
    fake = engine(page_size=4)
    for name in ("a", "b"):
        fake.add(request(name, [1, 2, 3, 4, 1, 2, 3, 4]))
        fake.drain()
    assert (fake.scheduler.prefix_cache_queries, fake.scheduler.prefix_cache_hits) == (16, 4)


def test_ten_thousand_requests_leave_nothing_behind():
    fake = engine(num_pages=40, page_size=4, length=Fixed(2), max_num_seqs=16, max_num_batched_tokens=64)
    rng = random.Random(5)
    for number in range(10_000):
        prompt = [rng.randrange(2) for _ in range(rng.randint(1, 9))]
        fake.scheduler.add(request(f"r{number}", prompt, rng.randint(1, 4), arrival_time=float(number)))
        if number % 7 == 0:
            fake.scheduler.abort(f"r{rng.randrange(number + 1)}")
        plan = fake.scheduler.schedule(float(number))
        tokens = [(0,) * min(1 + g.draft_budget, 2) if g.needs_logits else () for g in plan.grants]
        results = [
            StepResult(
                g.request.request_id, g.num_prefill_tokens, t[: 1 if g.num_prefill_tokens else 2], g.draft_budget
            )
            for g, t in zip(plan.grants, tokens, strict=True)
        ]
        fake.scheduler.update(results, float(number))
    for name in list(fake.scheduler._requests):
        fake.scheduler.abort(name)
    fake.scheduler.check_integrity()
    pool = fake.scheduler.pool
    assert not fake.scheduler.has_work and pool.num_free == 40 and pool.num_cached <= 40


def test_a_preempted_request_goes_on_where_it_stood():
    fake = engine(num_pages=6, page_size=2, length=Fixed(1))
    fake.add(request("first", [1, 2, 3, 4], 6, arrival_time=0.0))
    second = fake.add(request("second", [4, 3, 2, 1], 6, arrival_time=1.0))
    fake.drain()
    resumed = [
        grant for plan in fake.plans for grant in plan.grants
        if grant.request is second and not grant.is_decode and not grant.needs_logits
    ]  # fmt: skip
    assert second.num_preemptions >= 1 and resumed
    assert sum(len(c.token_ids) for c in fake.commits if c.request is second) == 6


def test_a_preempted_request_that_is_still_in_the_cache_is_admitted_only_with_room_to_decode():
    fake = engine(num_pages=8, page_size=1, max_num_batched_tokens=8, max_num_seqs=2)
    leader = fake.add(request("r-0", [0], 7))
    other = fake.add(request("r-1", [0], 7, leader=leader))
    fake.drain()
    assert other.num_preemptions >= 1
    assert leader.output_token_ids == other.output_token_ids == plain_text([0], 7)
