"""Drafts in a step: who gets which part of the rows, how deep they may be, who is looked at, and what is learned."""

from math import inf

import pytest

from paceline.scheduling import PagePool, RequestState, Scheduler, SchedulerConfig, StepResult
from paceline.scheduling.batch import StepPlan
from paceline.speculation import Fixed, LengthPolicy
from paceline.speculation.records import BatchStats
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


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
@pytest.mark.parametrize(
    ("num_drafted", "policy", "chunk"),
    [(0, "stall_free", 44), (2, "stall_free", 36), (8, "stall_free", 22), (8, "sarathi", 44)],
)
def test_drafts_take_the_rows_of_prompts_that_their_policy_wants_and_half_of_them_at_most(
    num_drafted, policy, chunk, params
):
    """Four requests that decode, and a long prompt, with 48 rows."""
    fake = engine(Fixed(num_drafted), max_num_batched_tokens=48, policy=policy)
    for number in range(4):
        fake.add(request(str(number), max_tokens=100, **params))
    while fake.scheduler.num_waiting:
        fake.step()
    fake.add(request("long", 300, **params))
    plan = fake.scheduler.schedule(9.0)
    assert plan.num_prefill_rows == chunk and plan.num_rows == 48


class Asked(LengthPolicy):
    """Wants `budget` nodes for each request, and keeps what it was told."""

    def __init__(self, budget: int) -> None:
        self.budget, self.batches = budget, []

    def budgets(self, requests, batch):
        self.batches.append(batch)
        return [self.budget] * len(requests)


def beside_a_prompt(num_prompt: int, budget: int = 6, **config) -> tuple[FakeEngine, Asked]:
    """Two requests that decode, and a prompt that is read in the next step, with 32 rows."""
    policy = Asked(budget)
    fake = engine(policy, max_num_batched_tokens=32, **config)
    for name in "ab":
        fake.add(request(name, max_tokens=100))
    fake.step()
    fake.add(request("long", num_prompt))
    policy.batches.clear()
    return fake, policy


def chunk_and_drafts(plan: StepPlan) -> tuple[int, list[int]]:
    return plan.num_prefill_rows, [grant.draft_budget for grant in plan.grants if grant.is_decode]


def test_a_policy_is_told_once_whether_its_drafts_displace_rows_of_a_prompt():
    fake, policy = beside_a_prompt(100)
    plan = fake.scheduler.schedule(1.0)
    assert chunk_and_drafts(plan) == (18, [6, 6])
    [batch] = policy.batches
    assert plan.batch == batch == BatchStats(2, 30, 30, 2.0, is_full=True)
    fake, policy = beside_a_prompt(18)
    plan = fake.scheduler.schedule(1.0)
    assert chunk_and_drafts(plan) == (18, [6, 6])
    assert policy.batches == [BatchStats(2, 18, 12, 2.0)]


@pytest.mark.parametrize(("num_rows", "chunks", "drafts"), [(60, 49, [5, 4]), (90, 80, [4, 4])])
def test_no_row_is_lost_beside_short_prompts(num_rows, chunks, drafts):
    """Thirty of twenty tokens wait, for six seats. With 60 rows only the last that is admitted leaves some of its rows,
    and can take them back; with 90 there are rows for four prompts and for drafts."""
    policy = Asked(6)
    fake = engine(policy, max_num_batched_tokens=num_rows, max_num_seqs=6)
    for name in "ab":
        fake.add(request(name, max_tokens=100))
    fake.step()
    for number in range(30):
        fake.add(request(str(number), 20))
    policy.batches.clear()
    plan = fake.scheduler.schedule(1.0)
    assert chunk_and_drafts(plan) == (chunks, drafts)
    assert policy.batches == [plan.batch] and plan.batch.is_full == (num_rows == 60)
    assert fake.scheduler.fill_up(0).num_prefill_rows == min(80, num_rows - 2)


@pytest.mark.parametrize("balanced_context", [inf, 40.0])
def test_all_rows_of_a_step_are_used_and_said(balanced_context):
    """Whatever is drafted, while a long prompt is read; rows of its attention are counted."""
    fake, _ = beside_a_prompt(400, balanced_context=balanced_context)
    while fake.scheduler._requests["long"].num_computed < 330:
        fake.step()
        plan = fake.scheduler._last_plan
        drafted = sum([commit.outcome.num_draft_tokens for commit in fake.commits[-3:]])
        assert plan.prompt_rows + 2 + drafted == 32
        assert plan.num_prefill_rows <= plan.prompt_rows
        assert (plan.num_prefill_rows < plan.prompt_rows) == (balanced_context < inf and plan.grants[-1].start > 0)


def test_a_prompt_that_cannot_be_admitted_leaves_the_price_of_drafts_as_it_is():
    fake, policy = beside_a_prompt(100, max_num_seqs=2)
    assert chunk_and_drafts(fake.scheduler.schedule(1.0)) == (0, [6, 6])
    assert policy.batches == [BatchStats(2, 0, 30, 2.0)]


@pytest.mark.parametrize(("num_drafted", "chunk"), [(0, 30), (1, 29), (12, 18)])
def test_rows_that_no_draft_uses_go_to_the_prompt(num_drafted, chunk):
    fake, _ = beside_a_prompt(100)
    fake.scheduler.schedule(1.0)
    plan = fake.scheduler.fill_up(num_drafted)
    assert chunk_and_drafts(plan) == (chunk, [6, 6]) and not plan.grants[-1].needs_logits
    results = [StepResult(name, 0, (1,)) for name in "ab"] + [StepResult("long", chunk)]
    fake.scheduler.update(results, 1.0)
    assert fake.scheduler._requests["long"].num_computed == chunk


def test_a_prompt_that_ends_with_the_rows_it_is_given_says_its_first_token():
    fake, _ = beside_a_prompt(30)
    assert not fake.scheduler.schedule(1.0).grants[-1].needs_logits
    plan = fake.scheduler.fill_up(0)
    assert chunk_and_drafts(plan)[0] == 30 and plan.grants[-1].needs_logits
    assert fake.scheduler.fill_up(0) is plan


def test_rows_late_in_a_prompt_are_given_as_many_as_their_attention_takes():
    """After 60 tokens of a context that doubles a row's time, 12 rows of drafts are 6 of the prompt."""
    fake, _ = beside_a_prompt(200, budget=0, balanced_context=60)
    while fake.scheduler._requests["long"].num_computed < 60:
        fake.step()
    fake.scheduler.length_policy.budget, before = 6, fake.scheduler._requests["long"].num_computed
    chunk, _ = chunk_and_drafts(fake.scheduler.schedule(9.0))
    more, _ = chunk_and_drafts(fake.scheduler.fill_up(0))
    assert before < 70 and more - chunk == int(12 / (1 + before / 60))


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
        result = StepResult("r", 0, (5, 7), 3, True, depth=2, num_rejected=1, tokens=(5, 6, 8), parents=(-1, -1, 0))
        told += scheduler.update([result], 1.0)
    first, second = (commit.outcome for commit in told)
    assert list(first.new_tokens) == [5, 7] and first.token_ids is second.token_ids
    assert (first.num_draft_tokens, first.depth, first.num_accepted, first.num_rejected) == (3, 2, 1, 1)
    assert first.asked and first.level_rejected and first.wanted == 6 and not first.finished
    assert (first.tokens, first.parents) == ((5, 6, 8), (-1, -1, 0))
    assert (first.in_a_row, second.in_a_row) == (False, True)
    scheduler.schedule(2.0)
    [last] = scheduler.update([StepResult("r", 0, (9,))], 2.0)
    assert last.outcome.finished and last.finish_reason == "length"
