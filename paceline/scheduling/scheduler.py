"""`Scheduler`: plans each step and commits its results.

``schedule(now)`` plans, the engine runs the plan, ``update(results, now)`` commits. Single-threaded, no clock, no
model. Policies (`policies/`) decide which requests a step serves; `step.py` enforces the limits.
"""

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush

from paceline.errors import InvalidParameter, PromptTooLong
from paceline.scheduling.batch import Commit, Grant, StepPlan, StepResult, chunk_of
from paceline.scheduling.config import SchedulerConfig
from paceline.scheduling.pages import PagePool, extend_digests
from paceline.scheduling.policies import make_policy
from paceline.scheduling.request import RequestState, Status, page_table_of
from paceline.scheduling.step import StepBuilder, by_order
from paceline.scheduling.stop import StopChecker
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.policies import Fixed, LengthPolicy
from paceline.speculation.records import DraftRates, DraftStats
from paceline.types import FinishReason

_IDLE_DEADLINES = 64
"""Number of stale deadlines (of finished requests) in the heap before it is rebuilt."""


class Scheduler:
    """Schedules the requests of one engine over one page pool.

    Args:
        config: limits and the policy's name.
        pool: pages of the target's cache; nothing else may allocate from it.
        length_policy: of drafts; None is plain decoding.
        branches: whether drafts may have more nodes than levels.
        stop: stop rules; with None only lengths stop a request.

    Every request that fits into the pool alone finishes: the first one in scheduling order is never preempted.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        pool: PagePool,
        length_policy: LengthPolicy | None = None,
        stop: StopChecker | None = None,
        branches: bool = False,
    ) -> None:
        self.config = config
        self.pool = pool
        self.length_policy = Fixed(0) if length_policy is None else length_policy
        self._branches = branches
        self.draft_rates = DraftRates.of_engine()
        """Rates of all requests together, the prior of a new request."""
        self._stop = StopChecker() if stop is None else stop
        self._policy = make_policy(config.policy)
        self._requests: dict[str, RequestState] = {}
        self._running: list[RequestState] = []
        self._waiting: list[RequestState] = []
        self._deadlines: list[tuple[float, int, RequestState]] = []
        self._last_plan = StepPlan()
        self._num_added = 0
        self.prefix_cache_queries = 0
        """Tokens of admitted requests."""
        self.prefix_cache_hits = 0
        """Tokens among them whose keys and values were already in the cache."""

    @property
    def num_running(self) -> int:
        """Requests that hold pages."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that hold no pages."""
        return len(self._requests) - len(self._running)

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._requests)

    def add(self, request: RequestState) -> None:
        """Add a new request; its output is limited to the model's length.

        A request with a leader waits until the leader's prompt is computed, and then shares its pages.

        Raises:
            InvalidParameter: its id is in use, its prompt is too long for the model, or it cannot fit in the pool even
                alone.
        """
        longest, slots = self.config.max_model_len, self.pool.num_pages * self.pool.page_size
        if request.request_id in self._requests:
            raise InvalidParameter("request_id", f"{request.request_id!r} is in use", "give every request its own id")
        if request.num_prompt_tokens >= longest:
            size = f"{request.num_prompt_tokens} tokens"
            problem = f"the prompt is too long: {size}, and this model's maximum context length is {longest} tokens"
            remedy = f"shorten it to at most {longest - 1} tokens"
            if longest == slots:  # the cache ends before the model's own context does
                remedy += ", or raise kv_cache_memory_bytes"
            raise PromptTooLong("prompt_token_ids", problem, remedy)
        request.output_limit = min(request.params.max_tokens, longest - request.num_prompt_tokens)
        if self.pool.pages_for(request.most_slots) > self.pool.num_pages:
            problem = f"prompt and output need {request.most_slots} cache slots, the cache has {slots}"
            raise InvalidParameter("max_tokens", problem, "ask for fewer tokens or give the cache more pages")
        request.sequence = self._num_added
        request.draft_stats = DraftStats(
            self.draft_rates.as_prior(), num_left=request.output_limit, num_unread=request.num_prompt_tokens
        )
        self._num_added += 1
        self._requests[request.request_id] = request
        if request.deadline is not None:
            heappush(self._deadlines, (request.deadline, request.sequence, request))
        leader = request.leader
        if leader is not None and leader.first_token_time is None and leader.status is not Status.FINISHED:
            leader.followers.append(request)
        else:
            insort(self._waiting, request, key=by_order)

    def schedule(self, now: float) -> StepPlan:
        """Plan the next step; empty when there are no requests. `now` is in seconds on the caller's clock.

        Requests whose deadline has passed are finished first, with the tokens they have.
        """
        expired = tuple(self._expire(now)) if self._deadlines else ()
        step = StepBuilder(self.config, self.pool, self._running, self._waiting, self.length_policy, self._branches)
        self._policy.fill(step)
        plan = step.plan()
        self._last_plan = replace(plan, expired=expired) if expired else plan
        for request in step.admitted:
            self.prefix_cache_queries += request.num_tokens
            self.prefix_cache_hits += request.num_computed
        for grant in plan.grants[plan.batch.num_decodes :]:
            if grant.request.first_scheduled_time is None:
                grant.request.first_scheduled_time = now
        return self._last_plan

    def fill_up(self, num_drafted: int) -> StepPlan:
        """The latest plan, where a prompt gets the rows that were left for drafts and that their nodes do not use.

        Call it between the drafts and the pass. The first chunk that does not end its prompt gets the rows.

        Args:
            num_drafted: nodes of all drafts.
        """
        plan = self._last_plan
        unused = plan.rows_left - num_drafted
        if plan.batch.is_full and unused > 0:
            for place, grant in enumerate(plan.grants):
                if grant.num_prefill_tokens < grant.request.num_to_prefill and not grant.is_decode:
                    grants = (*plan.grants[:place], self._lengthened(grant, unused), *plan.grants[place + 1 :])
                    used = plan.prompt_rows + unused
                    self._last_plan = replace(plan, grants=grants, rows_left=num_drafted, prompt_rows=used)
                    break
        return self._last_plan

    def _lengthened(self, grant: Grant, num_rows: int) -> Grant:
        """A chunk beside decodes that takes about `num_rows` rows longer; see `StepBuilder.prefill_in_time`."""
        request, more = grant.request, int(num_rows / self.config.rows_of(grant.start))
        return chunk_of(request, min(request.num_to_prefill, grant.num_prefill_tokens + more))

    def _expire(self, now: float) -> Iterator[RequestState]:
        while self._deadlines and self._deadlines[0][0] <= now:
            *_, request = heappop(self._deadlines)
            if request.status is not Status.FINISHED:
                self._finish(request, "timeout", now)
                yield request

    def update(self, results: Iterable[StepResult], now: float) -> list[Commit]:
        """Commit the results of a step, token by token until a stop rule applies, and free unneeded pages.

        Call it once per `schedule`, after accepted branches were moved to the slots of their positions; from then on
        the slots of rejected rows are free. Results of requests aborted meanwhile are skipped.

        Raises:
            InvalidParameter: a result does not match a grant of the latest plan; nothing is committed for it.
        """
        grants = {grant.request.request_id: grant for grant in self._last_plan.grants}
        commits: list[Commit] = []
        for result in results:
            grant = grants.pop(result.request_id, None)
            if grant is None:
                problem = f"{result.request_id!r} has no open grant"
                raise InvalidParameter("results", problem, "answer each grant of the latest plan once")
            if grant.request.status is not Status.FINISHED:
                _check_result(grant, result)
                commits.append(self._commit(grant, result, now))
        self.draft_rates.learn_step([commit.outcome for commit in commits])
        return commits

    def abort(self, request_id: str, now: float | None = None, reason: FinishReason = "abort") -> RequestState | None:
        """End a request now and return its state with the output so far; None for an unknown or finished id."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, reason, now)
        return request

    def restart(self) -> list[RequestState]:
        """Discard the cache: all requests that hold pages return to waiting, to be recomputed. Returns these."""
        running = list(self._running)
        for request in running:
            self._running.remove(request)
            insort(self._waiting, request, key=by_order)
            self.pool.release(request.page_table)
            request.withdraw()
        self.pool.forget()
        self._last_plan = StepPlan()
        return running

    def check_integrity(self) -> None:
        """Raise RuntimeError when queues, page tables and pool are inconsistent; cheap enough to call when idle."""
        self.pool.check_integrity(request.page_table for request in self._running)
        for request in self._running:
            slots = len(request.page_table) * self.pool.page_size
            if request.status not in (Status.PREFILL, Status.RUNNING) or not 0 < request.num_to_compute <= slots:
                raise RuntimeError(f"scheduler: {request.request_id} runs in a state it cannot be in")
        for request in self._waiting:
            if request.status is not Status.WAITING or request.page_table or request.num_computed:
                raise RuntimeError(f"scheduler: {request.request_id} waits but is not empty-handed")
        held = sum(len(request.followers) for request in self._requests.values())
        if len(self._running) + len(self._waiting) + held != len(self._requests):
            raise RuntimeError("scheduler: a request is in no queue or in two")

    def _commit(self, grant: Grant, result: StepResult, now: float) -> Commit:
        request, token_ids = grant.request, result.token_ids
        count, reason = self._stop.commit(request, token_ids)
        outcome = _outcome(grant, result, count)
        if grant.num_prefill_tokens:
            self._prefilled(grant, count, now)
        else:
            request.num_computed += count
            request.draft_stats.learn(outcome.without_draft() if outcome.is_own else outcome)
        page_size = self.pool.page_size
        if request.num_computed >= (len(request.page_digests) + 1) * page_size:
            self._publish(request)
        if reason:
            outcome.finished = True
            self._finish(request, reason, now)
        elif len(request.page_table) * page_size >= len(request.token_ids) + page_size:
            self._trim(request)
        return Commit(request, token_ids if count == len(token_ids) else token_ids[:count], outcome, reason)

    def _prefilled(self, grant: Grant, num_emitted: int, now: float) -> None:
        """Count a computed chunk; after its last chunk the request decodes, and its followers are queued."""
        request = grant.request
        request.num_computed += grant.num_prefill_tokens
        if request.num_to_compute == 1 and request.num_output_tokens:
            request.status = Status.RUNNING
        if num_emitted and request.first_token_time is None:
            request.first_token_time = now
            self._enqueue(request.followers)

    def _publish(self, request: RequestState) -> None:
        """Register the request's newly filled pages for prefix caching; they hold committed tokens only."""
        if not self.config.prefix_caching:
            return
        first = len(request.page_digests)
        extend_digests(request.page_digests, request.token_ids, self.pool.page_size, request.num_computed, request.salt)
        for index in range(first, len(request.page_digests)):
            self.pool.publish(request.page_table[index], request.page_digests[index])

    def _trim(self, request: RequestState) -> None:
        """Free the pages after the committed tokens; the slot of the last token, not computed yet, is kept.

        So are the lookahead slots, while nobody needs their pages: freed and allocated anew, they would be other pages,
        and a pass that was begun ahead has written to these.
        """
        is_free = not self._waiting and self.pool.num_free >= len(self._running)
        ahead = min(request.num_tokens + self.config.num_lookahead_slots, request.most_slots) if is_free else 0
        keep = self.pool.pages_for(max(request.num_tokens, ahead, request.reserved_tokens))
        self.pool.release(request.page_table[keep:])
        del request.page_table[keep:]

    def _finish(self, request: RequestState, reason: FinishReason, now: float | None) -> None:
        self._dequeue(request)
        del self._requests[request.request_id]
        self.pool.release(request.page_table)
        request.page_table = page_table_of()
        request.finish_reason = reason
        request.finish_time = now
        request.status = Status.FINISHED
        if len(self._deadlines) > 2 * len(self._requests) + _IDLE_DEADLINES:
            self._deadlines = [each for each in self._deadlines if each[-1].status is not Status.FINISHED]
            heapify(self._deadlines)

    def _dequeue(self, request: RequestState) -> None:
        """Remove a request from its queue; its first follower becomes the leader of the others."""
        if request.status is not Status.WAITING:
            self._running.remove(request)
        elif request in self._waiting:
            self._waiting.remove(request)
        else:
            assert request.leader is not None
            request.leader.followers.remove(request)
        if request.followers:
            heir, *rest = request.followers
            for follower in rest:
                follower.leader = heir
            heir.leader, heir.followers, request.followers = None, rest, []
            self._enqueue([heir])

    def _enqueue(self, requests: list[RequestState]) -> None:
        """Move `requests` to the waiting queue, emptying the list."""
        for request in requests:
            insort(self._waiting, request, key=by_order)
        requests.clear()


def _outcome(grant: Grant, result: StepResult, count: int) -> RequestOutcome:
    """The outcome of a result of which `count` tokens were committed."""
    request, stats = grant.request, grant.request.draft_stats
    outcome = RequestOutcome(request.request_id, request.token_ids, count, grant.num_prefill_tokens)
    outcome.is_own = result.is_own
    if grant.draft_budget and not result.is_own:
        outcome.asked, outcome.wanted = True, grant.wanted_budget
        outcome.in_a_row = stats.num_drafts > 0 and not stats.steps_since_draft
    if result.num_draft_tokens:
        is_whole = count == len(result.token_ids)
        outcome.num_draft_tokens, outcome.depth = result.num_draft_tokens, result.depth or result.num_draft_tokens
        outcome.tokens, outcome.parents, outcome.picks = result.tokens, result.parents, result.picks
        outcome.num_accepted = min(len(result.token_ids) - 1, count)
        outcome.level_rejected = result.level_rejected and is_whole
        outcome.promised = result.promised if is_whole else 0.0
        outcome.num_rejected = max(result.num_rejected, result.level_rejected) if is_whole else 0
    if result.taps is not None:
        num_computed = grant.num_prefill_tokens or count
        outcome.taps = {tap: states[:num_computed] for tap, states in result.taps.items()}
        outcome.first_tapped = grant.start
        outcome.num_prompt_tokens, outcome.salt = request.num_prompt_tokens, request.salt
        outcome.temperature = request.params.temperature
    return outcome


def _check_result(grant: Grant, result: StepResult) -> None:
    """Raise InvalidParameter for a result that does not match its grant; it would corrupt the request's state."""
    chunk, drafted, emitted = grant.num_prefill_tokens, result.num_draft_tokens, len(result.token_ids)
    needed = 1 if grant.needs_logits else 0
    most = needed if chunk else 1 + drafted
    if result.num_prefill_tokens != chunk or drafted > grant.draft_budget or not needed <= emitted <= most:
        problem = f"{result} answers a grant of {chunk} prefill tokens or {grant.draft_budget} drafted ones"
        raise InvalidParameter("results", problem, "emit what was granted, no more and no less")
