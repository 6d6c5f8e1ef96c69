"""Drafts in a step: who gets which part of the rows, how deep they may be, who is looked at, and what is learned."""

import pytest

from paceline.scheduling import PagePool, RequestState, Scheduler, SchedulerConfig, StepResult
from paceline.speculation import Fixed, LengthPolicy
from paceline.types import SamplingParams
from tests.scheduling.fake_engine import FakeEngine

GREEDY, SAMPLED = {"temperature": 0.0}, {"temperature": 1.0}


def request(name: str, num_prompt: int = 2, max_tokens: int = 30, **params) -> RequestState:
    return RequestState(name, [1] * num_prompt, SamplingParams(max_tokens=max_tokens, **params))


def engine(length: LengthPolicy, num_pages: int = 200, branches: bool = False, **config) -> FakeEngine:
    limits = SchedulerConfig(**{"tile": 1, "prefix_caching": False, **config})
    return FakeEngine(limits, PagePool(num_pages, 4), length, branches=branches)


def most_running(num_drafted: int, params: dict) -> tuple[int, int]:
    """(requests that ran at once, steps until all were done) of 32 requests with 48 rows and 16 seats."""
    fake = engine(Fixed(num_drafted), max_num_batched_tokens=48, max_num_seqs=16)
    for number in range(32):
        fake.add(request(str(number), max_tokens=6, **params))
    running = 0
    while fake.scheduler.has_work:
        fake.step()
        running = max(running, fake.plans[-1].batch.num_decodes)
    return running, len(fake.plans)


@pytest.mark.parametrize("num_drafted", [0, 8, 47])
def test_as_many_requests_run_at_once_whatever_their_temperature_and_drafts(num_drafted):
    assert most_running(num_drafted, SAMPLED) == most_running(num_drafted, GREEDY)
    assert most_running(num_drafted, SAMPLED)[0] == 16


def steps_to_the_first_token(num_drafted: int, params: dict) -> int:
    """Of a prompt of 300 tokens beside four requests that decode, with 48 rows."""
    fake = engine(Fixed(num_drafted), max_num_batched_tokens=48)
    for number in range(4):
        fake.add(request(str(number), max_tokens=100, **params))
    fake.step()
    long = fake.add(request("long", 300, **params))
    while long.first_token_time is None:
        fake.step()
    return len(fake.plans) - 1


def test_a_prompt_is_read_as_fast_beside_sampled_requests_that_draft_as_beside_plain_ones():
    expected = -(-300 // (48 - 4))
    for params in (GREEDY, SAMPLED):
        for num_drafted in (0, 8):
            assert steps_to_the_first_token(num_drafted, params) == expected == 7


def granted(max_tokens: int, budget: int, branches: bool, num_pages: int = 200) -> tuple[int, int]:
    """(nodes, levels) of the first draft of a request."""
    fake = engine(Fixed(budget), num_pages, branches)
    fake.add(request("r", max_tokens=max_tokens))
    fake.step()
    [grant] = fake.scheduler.schedule(1.0).grants
    assert grant.num_rows == 1 + grant.draft_budget and grant.wanted_budget == budget
    return grant.draft_budget, grant.draft_depth


@pytest.mark.parametrize(
    ("max_tokens", "tree", "chain"),
    [(30, (12, 12), (12, 12)), (6, (12, 4), (4, 4)), (5, (12, 3), (3, 3)), (3, (12, 1), (1, 1)), (2, (0, 0), (0, 0))],
)
def test_the_end_of_the_output_limits_levels_and_not_nodes(max_tokens, tree, chain):
    """With n tokens left, the first of them said, a draft of n - 2 levels and the target's own token end the output."""
    assert granted(max_tokens, budget=12, branches=True) == tree
    assert granted(max_tokens, budget=12, branches=False) == chain


def test_a_tree_ends_an_output_in_as_few_passes_as_a_chain():
    """Twelve nodes in levels of three: all four tokens that are left come out of one pass."""
    scheduler = Scheduler(SchedulerConfig(tile=1), PagePool(20, 4), Fixed(12), branches=True)
    state = request("r", max_tokens=5)
    scheduler.add(state)
    scheduler.schedule(0.0)
    scheduler.update([StepResult("r", 2, (1,))], 0.0)
    [grant] = scheduler.schedule(1.0).grants
    assert (grant.draft_budget, grant.draft_depth) == (12, 3)
    [commit] = scheduler.update([StepResult("r", 0, (1, 1, 1, 1), num_draft_tokens=12, depth=3)], 1.0)
    assert commit.finish_reason == "length" and commit.outcome.num_accepted == 3 and state.draft_stats.last_depth == 3


def test_a_tree_takes_no_more_nodes_than_there_are_free_pages():
    nodes, levels = granted(max_tokens=6, budget=12, branches=True, num_pages=3)
    assert (nodes, levels) == (9, 4)


def test_a_request_whose_drafter_failed_gets_no_draft_and_leaves_its_rows_to_the_others():
    fake = engine(Fixed(6), max_num_batched_tokens=8)
    for name in ("well", "ill"):
        fake.add(request(name))
    fake.step()
    fake.scheduler._requests["ill"].drafts = False
    plan = fake.scheduler.schedule(1.0)
    assert [(g.request.request_id, g.draft_budget, g.draft_depth) for g in plan.grants] == [
        ("well", 6, 6), ("ill", 0, 0),
    ]  # fmt: skip


def test_a_draft_that_was_not_granted_was_not_asked_for():
    scheduler = Scheduler(SchedulerConfig(tile=1, max_num_batched_tokens=1), PagePool(20, 4), Fixed(6))
    state = request("r", 1)
    scheduler.add(state)
    scheduler.schedule(0.0)
    scheduler.update([StepResult("r", 1, (1,))], 0.0)
    scheduler.schedule(1.0)
    [commit] = scheduler.update([StepResult("r", 0, (1,))], 1.0)
    assert not commit.outcome.asked and commit.outcome.wanted == 0
    assert state.draft_stats.rates == scheduler.draft_rates.as_prior()


def test_an_outcome_tells_what_became_of_a_draft():
    scheduler = Scheduler(SchedulerConfig(tile=1), PagePool(20, 4), Fixed(6), branches=True)
    scheduler.add(request("r", max_tokens=6))
    scheduler.schedule(0.0)
    [commit] = scheduler.update([StepResult("r", 2, (1,))], 0.0)
    assert (commit.outcome.num_prefill_tokens, commit.outcome.num_new, commit.outcome.asked) == (2, 1, False)
    told = []
    for _ in range(2):
        scheduler.schedule(1.0)
        result = StepResult("r", 0, (5, 7), 3, True, depth=2, num_refused=1, tokens=(5, 6, 8), parents=(-1, -1, 0))
        told += scheduler.update([result], 1.0)
    first, second = (commit.outcome for commit in told)
    assert list(first.new_tokens) == [5, 7] and first.token_ids is second.token_ids
    assert (first.num_draft_tokens, first.depth, first.num_accepted, first.num_refused) == (3, 2, 1, 1)
    assert first.asked and first.level_refused and first.wanted == 6 and not first.finished
    assert (first.tokens, first.parents) == ((5, 6, 8), (-1, -1, 0))
    assert (first.in_a_row, second.in_a_row) == (False, True)
    scheduler.schedule(2.0)
    [last] = scheduler.update([StepResult("r", 0, (9,))], 2.0)
    assert last.outcome.finished and last.finish_reason == "length"
