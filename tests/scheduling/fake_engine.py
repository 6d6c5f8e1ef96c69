"""An engine without a model: the next token is a function of the history, keys and values are what they stand for.

Every cache slot remembers the prefix it was computed for, and a pass checks all slots it attends to. A page freed too
early, shared wrongly or written by a rejected draft is noticed by the first row that reads it.
"""

import random

from paceline.scheduling import Commit, Grant, PagePool, RequestState, Scheduler, StepPlan, StepResult
from paceline.scheduling.config import SchedulerConfig
from paceline.speculation import Fixed

VOCAB = 5


def next_token(history: list[int]) -> int:
    """The fake model: depends on the whole history, so a wrong recomputation shows."""
    return (sum((i + 3) * token for i, token in enumerate(history)) + 7 * len(history)) % VOCAB


def plain_text(prompt: list[int], num_tokens: int) -> list[int]:
    """What the fake model says when it runs alone."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class FakeEngine:
    """Runs a scheduler's plans; `seed` decides how well its drafts are accepted.

    Drafts are trees when they may branch: their nodes beyond the granted levels are siblings of the first level.
    """

    def __init__(
        self, config: SchedulerConfig, pool: PagePool, length=None, stop=None, seed: int = 0, branches: bool = False
    ) -> None:
        self.scheduler = Scheduler(config, pool, Fixed(0) if length is None else length, stop, branches)
        self.plans: list[StepPlan] = []
        self.commits: list[Commit] = []
        self.rows_computed = 0
        self._random = random.Random(seed)
        self._slots: dict[tuple[int, int], tuple[int, ...] | None] = {}

    def add(self, request: RequestState) -> RequestState:
        self.scheduler.add(request)
        return request

    def step(self) -> list[Commit]:
        """schedule, run, update; the number of steps so far is the clock. Plans are kept as they were scheduled."""
        plan = self.scheduler.schedule(now=float(len(self.plans)))
        for source, destination in plan.copies:
            for place in range(self.scheduler.pool.page_size):
                self._slots[destination, place] = self._slots.get((source, place))
        decoded = [self.run(grant) for grant in plan.grants if grant.is_decode]
        num_drafted = sum([result.num_draft_tokens for result in decoded])
        self.plans.append(plan)
        plan = self.scheduler.fill_up(num_drafted)
        num_rows = len(decoded) + num_drafted + plan.num_prefill_rows
        config = self.scheduler.config
        assert num_rows <= config.max_num_batched_tokens or config.policy == "orca"
        results = decoded + [self.run(grant) for grant in plan.grants if not grant.is_decode]
        commits = self.scheduler.update(results, now=float(len(self.plans)))
        self.commits += commits
        return commits

    def drain(self, most_steps: int = 5000) -> None:
        """Steps until nothing is left; fails when that takes too long (somebody starves)."""
        for _ in range(most_steps):
            if not self.scheduler.has_work:
                return
            self.step()
            self.scheduler.check_integrity()
        raise AssertionError("the scheduler does not get its work done")

    def lose_the_cache(self) -> None:
        """Nothing that was computed can be trusted any more."""
        self._slots.clear()

    def run(self, grant: Grant) -> StepResult:
        """One grant, as a model would run it."""
        request, tokens = grant.request, grant.request.token_ids
        assert grant.start == request.num_computed
        for position in range(grant.start):
            assert self._slots.get(self._slot(request, position)) == tuple(tokens[: position + 1])
        if grant.is_decode:
            return self._decode(grant)
        self.rows_computed += grant.num_prefill_tokens
        end = grant.start + grant.num_prefill_tokens
        for position in range(grant.start, end):
            self._slots[self._slot(request, position)] = tuple(tokens[: position + 1])
        emitted = (next_token(tokens),) if end == len(tokens) else ()
        assert grant.needs_logits == bool(emitted)
        return StepResult(request.request_id, grant.num_prefill_tokens, emitted)

    def _decode(self, grant: Grant) -> StepResult:
        """Root and draft rows; the accepted ones end up in their natural slots, the others leave rubbish."""
        request, tokens = grant.request, list(grant.request.token_ids)
        self.rows_computed += grant.num_rows
        for position in range(grant.start, grant.start + grant.num_rows):
            self._slots[self._slot(request, position)] = None
        drafted = self._random.randint(0, grant.draft_budget)
        depth = min(drafted, grant.draft_depth)
        accepted = self._random.randint(0, depth)
        for _ in range(accepted + 1):
            self._slots[self._slot(request, len(tokens) - 1)] = tuple(tokens)
            tokens.append(next_token(tokens))
        emitted = tuple(tokens[request.num_tokens :])
        rejected = accepted < depth
        return StepResult(request.request_id, 0, emitted, drafted, rejected, depth)

    def _slot(self, request: RequestState, position: int) -> tuple[int, int]:
        size = self.scheduler.pool.page_size
        return request.page_table[position // size], position % size
