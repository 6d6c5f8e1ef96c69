"""`StepBuilder`: one step under construction, and the operations that scheduling policies use.

It enforces the limits (rows, pages, number of requests); the policy decides the order of requests and their rows. Not
the place for results (`scheduler.py`).
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, repeat

from paceline.scheduling.batch import Grant, StepPlan, chunk_of
from paceline.scheduling.config import SchedulerConfig
from paceline.scheduling.draft_rows import Demand
from paceline.scheduling.pages import PagePool, extend_digests
from paceline.scheduling.request import RequestState, Status, page_table_of
from paceline.speculation.policies import LengthPolicy
from paceline.speculation.records import BatchStats


def by_order(request: RequestState) -> tuple[int, float, int]:
    """Sort key of both queues, running and waiting."""
    return request.order


_LEAST_CHUNK = 16
"""Tokens of a chunk that is cut because of its context: with fewer a pass takes the time of reading the weights."""


class StepBuilder:
    """Collects the grants of one step.

    Args:
        config, pool: the limits.
        running: requests that hold pages, in scheduling order; changed in place by admissions and preemptions.
        waiting: requests that hold no pages, in scheduling order; changed in place.
        length_policy: decides how many nodes each decode should draft.
        branches: whether drafts may have more nodes than levels.
    """

    def __init__(
        self, config: SchedulerConfig, pool: PagePool, running: list[RequestState], waiting: list[RequestState],
        length_policy: LengthPolicy, branches: bool,
    ) -> None:  # fmt: skip
        self.config = config
        self.waiting = waiting
        self.num_rows = 0
        """Rows granted so far."""
        self._attention_rows = 0
        """As many more rows as the attention of granted chunks takes time."""
        self._draft_rows = 0
        """Rows that prompts leave for drafts."""
        self._early: tuple[BatchStats, Demand] | None = None
        """The demand of drafts, if it was asked for before prompts got their rows."""
        self._length_policy, self._branches = length_policy, branches
        self._pool = pool
        self._running = running
        self._decodes: list[RequestState] = []
        self._prefills: list[Grant] = []
        self._preempted: list[RequestState] = []
        self._copies: list[tuple[int, int]] = []
        self.admitted: list[RequestState] = []

    @property
    def decoding(self) -> list[RequestState]:
        """Requests that can decode, in scheduling order (a copy)."""
        running = Status.RUNNING
        return [request for request in self._running if request.status is running]

    @property
    def prefilling(self) -> list[RequestState]:
        """Admitted requests with tokens left to prefill and no chunk in this step yet, in scheduling order (a copy)."""
        granted = {grant.request for grant in self._prefills}
        prefill = Status.PREFILL
        return [request for request in self._running if request.status is prefill and request not in granted]

    @property
    def rows_left(self) -> int:
        """Rows left of the token budget, at least 0; while prompts are granted, without those left for drafts."""
        used = self.num_rows + self._attention_rows + self._draft_rows
        return max(0, self.config.max_num_batched_tokens - used)

    @property
    def num_prefills(self) -> int:
        """Prefill chunks granted so far."""
        return len(self._prefills)

    @property
    def has_preempted(self) -> bool:
        """Whether the step has preempted a request, so that none should be admitted."""
        return bool(self._preempted)

    def decode(self, requests: Iterable[RequestState]) -> None:
        """Grant one row to each of `requests`, preempting later requests when no pages are free.

        Call it in scheduling order. The last running request without a grant is preempted first, which may be the
        requesting one; requests preempted meanwhile are skipped.
        """
        size = self._pool.page_size
        for request in requests:
            if request.num_computed >= len(request.page_table) * size and not self._win_page(request):
                continue
            if request.status is Status.RUNNING:
                self._decodes.append(request)
                self.num_rows += 1

    def prefill(self, request: RequestState, num_tokens: int) -> None:
        """Grant a chunk of at most `num_tokens` tokens; none for 0. Its pages were allocated at admission."""
        chunk = min(num_tokens, request.num_to_prefill)
        if chunk > 0:
            self._prefills.append(chunk_of(request, chunk))
            self.num_rows += chunk

    def prefill_in_time(self, request: RequestState, num_rows: int) -> None:
        """As `prefill`, with a chunk that takes about as long as `num_rows` tokens at the beginning of a text.

        Only for chunks beside decodes, which wait for them: a row's attention takes longer the more tokens precede it,
        so chunks of one size would take ever longer. A chunk that is cut short uses up `num_rows`: what rounding
        leaves would begin another prompt with a row or two.
        """
        if not self._decodes:
            self.prefill(request, num_rows)
            return
        if num_rows <= 0:
            return
        each = self.config.rows_of(request.num_computed)
        chunk = max(min(_LEAST_CHUNK, num_rows), int(num_rows / each))
        is_last = request.num_to_prefill <= chunk
        chunk = min(chunk, request.num_to_prefill)
        self.prefill(request, chunk)
        self._attention_rows += min(int(chunk * (each - 1)), num_rows - chunk) if is_last else num_rows - chunk

    def admit(self, request: RequestState, reserve: bool = False) -> bool:
        """Admit a waiting request if `max_num_seqs` and the free pages allow it.

        Pages for the whole prefill are allocated at once, so that partly prefilled requests cannot block each other. A
        cached prefix is reused, but never all tokens: the last one must be computed for its logits.

        Args:
            reserve: allocate pages for the longest output as well, so that the request is never preempted.

        Returns:
            False when it does not fit. The policy should then stop admitting (first come, first served).
        """
        if len(self._running) >= self.config.max_num_seqs:
            return False
        pool = self._pool
        reused, digests = self._reusable(request)
        is_partial = len(reused) * pool.page_size > request.num_tokens - 1
        known = min(len(reused) * pool.page_size, request.num_tokens - 1)
        goes_on = request.num_output_tokens > 0 and known == request.num_tokens - 1  # preempted, and still in the cache
        slots = request.most_slots if reserve else request.num_tokens
        missing = pool.pages_for(slots) - len(reused)
        if missing + is_partial > pool.num_free or (goes_on and not self.rows_left):
            pool.release(reused)
            return False
        if is_partial and (copy := pool.make_writable(reused, len(reused) - 1)):
            self._copies.append(copy)
        self.waiting.remove(request)
        insort(self._running, request, key=by_order)
        request.page_table, request.page_digests = page_table_of(reused + pool.allocate(missing)), digests
        request.num_computed = known
        if not request.num_preemptions:
            request.num_cached_tokens = known
        request.reserved_tokens = slots if reserve else 0
        request.status = Status.RUNNING if goes_on else Status.PREFILL
        self.admitted.append(request)
        if goes_on:
            self.decode([request])
        return True

    def _reusable(self, request: RequestState) -> tuple[list[int], list[bytes]]:
        """(pages that hold a prefix of the request's tokens, with references added; digests of the full ones).

        Taken from its leader, where the last page may be partly filled, or else from the prefix cache.
        """
        pool, known = self._pool, request.num_tokens - 1
        leader = request.leader if pool.can_resume is None else None  # the middle of a page cannot be asked for
        if leader is not None and request.num_output_tokens == 0 and leader.page_table and leader.num_computed >= known:
            return pool.fork(leader.page_table[: pool.pages_for(known)]), leader.page_digests[: known // pool.page_size]
        digests: list[bytes] = []
        if self.config.prefix_caching and request.params.prompt_logprobs is None:
            extend_digests(digests, request.token_ids, pool.page_size, known, request.salt)
        cached = pool.longest_prefix(digests)
        pool.share(cached)
        return cached, digests[: len(cached)]

    def leave_rows_for_drafts(self) -> None:
        """Leave rows for the drafts of the granted decodes before prompts fill the step: what they want, at most half.

        Call it after `decode`, when a prompt is sure to get rows. In a full step every row takes its time, a prompt's
        as well as a draft's. The policy weighs a draft's tokens against that time, so drafts displace a prompt's rows
        only where they save more time than these take. Does nothing unless one prompt fills the step by itself, which
        can then take back what drafts do not use (`Scheduler.fill_up`), and when called again.
        """
        rows = self.rows_left
        fills = any(request.num_to_prefill >= rows for request in self.prefilling)
        if self._early is None and self._decodes and fills:
            batch = self._batch(rows, is_full=True)
            demand = self._asked(batch)
            self._early, self._draft_rows = (batch, demand), min(sum(demand.nodes), rows // 2)

    def plan(self) -> StepPlan:
        """The finished plan, with the remaining rows divided among the drafts of decodes.

        Drafts come last: they never displace a decode, nor a chunk unless the policy left rows for them, never preempt,
        and are no deeper than the tokens that the request may still emit.
        """
        self._draft_rows = 0
        prefill_rows = sum([grant.num_prefill_tokens for grant in self._prefills])
        if self._early is not None:
            batch, demand = self._early
            batch = replace(batch, num_decodes=len(self._decodes))  # one may have gone on since
        else:
            batch = self._batch(prefill_rows)
            demand = self._asked(batch)
        grants, preempted = (*self._grants(demand), *self._prefills), tuple(self._preempted)
        if self.config.num_lookahead_slots:
            self._look_ahead()
        return StepPlan(
            grants, preempted, batch, copies=tuple(self._copies), rows_left=self.rows_left,
            prompt_rows=prefill_rows + self._attention_rows,
        )  # fmt: skip

    def _batch(self, num_prefill_rows: int, is_full: bool = False) -> BatchStats:
        decodes = self._decodes
        context = sum([request.num_computed for request in decodes]) / max(1, len(decodes))
        return BatchStats(len(decodes), num_prefill_rows, self.rows_left, context, is_full)

    def _asked(self, batch: BatchStats) -> Demand:
        return Demand.of(self._decodes, self._length_policy, self._branches, batch)

    def _grants(self, demand: Demand) -> list[Grant]:
        """A grant for every decode, with a draft budget as far as rows and pages allow."""
        if not any(demand.wanted):
            return [Grant(request, start=request.num_computed) for request in self._decodes]
        demand.share(self.rows_left)
        asked, grants = chain(zip(demand.wanted, demand.nodes, demand.levels, strict=True), repeat((0, 0, 0))), []
        for request, (wanted, nodes, levels) in zip(self._decodes, asked, strict=False):
            granted = self._grow(request, nodes) if nodes else 0
            grants.append(Grant(request, 0, granted, min(granted, levels), wanted, request.num_computed))
        return grants

    def _look_ahead(self) -> None:
        """Allocate pages that are still free for the lookahead slots of decoding requests."""
        pool, ahead = self._pool, self.config.num_lookahead_slots
        for request in self._decodes:
            if len(request.token_ids) + ahead <= len(request.page_table) * pool.page_size:
                continue
            missing = pool.pages_for(min(request.num_tokens + ahead, request.most_slots)) - len(request.page_table)
            if 0 < missing <= pool.num_free:
                request.page_table.extend(pool.allocate(missing))

    def _grow(self, request: RequestState, num_nodes: int) -> int:
        """Allocate pages for up to `num_nodes` draft rows, as far as pages are free; returns the number of rows."""
        pool, num_tokens = self._pool, len(request.token_ids)
        slots = len(request.page_table) * pool.page_size
        if num_tokens + num_nodes <= slots:
            return num_nodes
        granted = min(num_nodes, slots + pool.num_free * pool.page_size - num_tokens)
        request.page_table.extend(pool.allocate(pool.pages_for(num_tokens + granted) - len(request.page_table)))
        return granted

    def _win_page(self, request: RequestState) -> bool:
        """Allocate a page for a decode, by preemption if needed; False when the request itself was preempted."""
        if request.status is not Status.RUNNING:
            return False
        while not self._pool.num_free:
            granted = {*self._decodes, *(grant.request for grant in self._prefills)}
            victim = next(r for r in reversed(self._running) if r not in granted)
            self._preempt(victim)
            if victim is request:
                return False
        request.page_table.extend(self._pool.allocate(1))
        return True

    def _preempt(self, request: RequestState) -> None:
        """Release a request's pages and move it to waiting; its prompt and output will be prefilled again."""
        self._running.remove(request)
        insort(self.waiting, request, key=by_order)
        self._pool.release(request.page_table)
        request.withdraw()
        self._preempted.append(request)
