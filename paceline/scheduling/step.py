"""`StepBuilder`: one step while it is being filled; the verbs policies are written in.

It knows what fits (rows, pages, seats) and keeps count; in which order and with how many rows requests are asked is
the policy's. Not the place for results (`scheduler.py`).
"""

from bisect import insort
from collections.abc import Iterable, Sequence

from paceline.scheduling.batch import Grant, StepPlan
from paceline.scheduling.config import SchedulerConfig
from paceline.scheduling.pages import PagePool, extend_digests
from paceline.scheduling.request import RequestState, Status
from paceline.speculation.policies import LengthPolicy
from paceline.speculation.records import BatchStats


def by_order(request: RequestState) -> tuple[int, float, int]:
    """Sort key of both queues."""
    return request.order


class StepBuilder:
    """Grants of one step.

    Args:
        config, pool: the limits.
        running: requests that hold pages, in scheduling order; changed in place by admissions and preemptions.
        waiting: requests that hold none, in scheduling order; changed in place.
    """

    def __init__(
        self, config: SchedulerConfig, pool: PagePool, running: list[RequestState], waiting: list[RequestState]
    ) -> None:
        self.config = config
        self.waiting = waiting
        self.num_rows = 0
        """Rows granted so far."""
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
        """Rows until the budget is spent, never negative."""
        return max(0, self.config.max_num_batched_tokens - self.num_rows)

    @property
    def num_prefills(self) -> int:
        """Chunks granted so far."""
        return len(self._prefills)

    @property
    def has_preempted(self) -> bool:
        """Memory ran out in this step: do not admit anyone."""
        return bool(self._preempted)

    def decode(self, requests: Iterable[RequestState]) -> None:
        """Grant a row each to decoding requests, taking pages from those after them in order when none are free.

        Ask in scheduling order: the last request that has no grant yet is preempted first, the asking one included;
        those preempted meanwhile are passed over.
        """
        size = self._pool.page_size
        for request in requests:
            if request.num_computed >= len(request.page_table) * size and not self._win_page(request):
                continue
            if request.status is Status.RUNNING:
                self._decodes.append(request)
                self.num_rows += 1

    def prefill(self, request: RequestState, num_tokens: int) -> None:
        """Grant a chunk of at most `num_tokens`, nothing for 0. Its pages are there since the admission."""
        left = request.num_to_prefill
        chunk = min(num_tokens, left)
        if chunk > 0:
            says_first = chunk == left and not request.num_output_tokens
            self._prefills.append(
                Grant(request, num_prefill_tokens=chunk, start=request.num_computed, needs_logits=says_first)
            )
            self.num_rows += chunk

    def admit(self, request: RequestState, reserve: bool = False) -> bool:
        """Move the first waiting request to those that hold pages, if there is a seat and memory for all its tokens.

        Pages for the whole prefill are taken at once: requests that are half way through theirs cannot block each
        other. A cached prefix is taken over, but never all tokens: the last one must be computed for its logits.

        Args:
            reserve: take pages for the longest output as well, so that it can never be preempted.

        Returns:
            False when it does not fit; then stop admitting, whoever comes next (first come, first served).
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
        request.page_table, request.page_digests = reused + pool.allocate(missing), digests
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
        """Pages, referenced, that hold the beginning of its tokens, and the digests of the full ones.

        Its leader's, whose last page may be full in part only, or else those of the prefix cache.
        """
        pool, leader, known = self._pool, request.leader, request.num_tokens - 1
        if leader is not None and request.num_output_tokens == 0 and leader.page_table and leader.num_computed >= known:
            return pool.fork(leader.page_table[: pool.pages_for(known)]), leader.page_digests[: known // pool.page_size]
        digests: list[bytes] = []
        if self.config.prefix_caching and request.params.prompt_logprobs is None:
            extend_digests(digests, request.token_ids, pool.page_size, known, request.salt)
        cached = pool.longest_prefix(digests)
        pool.share(cached)
        return cached, digests[: len(cached)]

    def plan(self, length: LengthPolicy, branches: bool) -> StepPlan:
        """The finished step: what is left of the rows is shared among the decodes' drafts.

        Drafts come last: they shrink before anybody's decode or prefill does, never preempt, and never reach beyond
        the tokens the request may still emit.

        Args:
            length: says how many nodes each decode should draft.
            branches: drafts may have more nodes than levels.
        """
        decodes = self._decodes
        prefill_rows = sum([grant.num_prefill_tokens for grant in self._prefills])
        context = sum([request.num_computed for request in decodes]) / max(1, len(decodes))
        batch = BatchStats(len(decodes), prefill_rows, self.rows_left, context)
        drafting = [request for request in decodes if request.drafts]
        stats = [request.draft_stats for request in drafting]
        budgets = length.budgets(stats, batch) if drafting else []
        if len(drafting) < len(decodes):
            asked = iter(budgets)
            budgets = [next(asked) if request.drafts else 0 for request in decodes]
        budgets = [
            request.draft_budget(wanted) if request.drafts else 0
            for request, wanted in zip(decodes, budgets, strict=True)
        ]
        grants = self._grants(budgets, branches)
        if self.config.num_lookahead_slots:
            self._look_ahead()
        copies = tuple(self._copies)
        return StepPlan((*grants, *self._prefills), tuple(self._preempted), batch, copies=copies)

    def _grants(self, wanted: Sequence[int], branches: bool) -> list[Grant]:
        """A grant for every decode, with a draft where one is wanted and there is room."""
        if not any(wanted):
            return [Grant(request, start=request.num_computed) for request in self._decodes]
        depths = [min(n, r.num_output_left - 1) for r, n in zip(self._decodes, wanted, strict=True)]
        useful = [n if depth > 0 and branches else depth for n, depth in zip(wanted, depths, strict=True)]
        nodes = self._share_rows(useful)
        return [
            Grant(request, 0, n, min(n, depth), rows_wanted, request.num_computed)
            for request, n, depth, rows_wanted in zip(self._decodes, nodes, depths, wanted, strict=True)
        ]

    def _look_ahead(self) -> None:
        """Pages that nobody else took in this step for the slots after the last tokens of decoding requests."""
        pool, ahead = self._pool, self.config.num_lookahead_slots
        for request in self._decodes:
            missing = pool.pages_for(min(request.num_tokens + ahead, request.most_slots)) - len(request.page_table)
            if 0 < missing <= pool.num_free:
                request.page_table += pool.allocate(missing)

    def _share_rows(self, useful: list[int]) -> list[int]:
        """Draft rows for each decode, with pages for them; when rows are short the smallest requests are met first."""
        if sum(useful) > self.rows_left:
            self._cut(useful)
        return [self._grow(r, rows) if rows else 0 for r, rows in zip(self._decodes, useful, strict=True)]

    def _cut(self, useful: list[int]) -> None:
        """Lower the numbers asked for, in place, until they fit."""
        rows_left = self.rows_left
        asking = [place for place, rows in enumerate(useful) if rows]
        asking.sort(key=useful.__getitem__)
        for still_asking, place in zip(range(len(asking), 0, -1), asking, strict=True):
            useful[place] = min(useful[place], -(-rows_left // still_asking))  # earlier ones take what does not divide
            rows_left -= useful[place]

    def _grow(self, request: RequestState, num_nodes: int) -> int:
        """Pages for `num_nodes` draft rows, or for as many as free pages hold; returns how many."""
        pool, num_tokens = self._pool, len(request.token_ids)
        slots = len(request.page_table) * pool.page_size
        if num_tokens + num_nodes <= slots:
            return num_nodes
        granted = min(num_nodes, slots + pool.num_free * pool.page_size - num_tokens)
        request.page_table += pool.allocate(pool.pages_for(num_tokens + granted) - len(request.page_table))
        return granted

    def _win_page(self, request: RequestState) -> bool:
        """A page for a decode, by preemption when need be; False when the request itself had to go."""
        if request.status is not Status.RUNNING:
            return False
        while not self._pool.num_free:
            granted = {*self._decodes, *(grant.request for grant in self._prefills)}
            victim = next(r for r in reversed(self._running) if r not in granted)
            self._preempt(victim)
            if victim is request:
                return False
        request.page_table += self._pool.allocate(1)
        return True

    def _preempt(self, request: RequestState) -> None:
        """Take everything back; prompt and output so far will be prefilled again."""
        self._running.remove(request)
        insort(self.waiting, request, key=by_order)
        self._pool.release(request.page_table)
        request.withdraw()
        self._preempted.append(request)
