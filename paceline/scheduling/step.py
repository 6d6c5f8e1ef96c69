"""`StepBuilder`: one step while it is being filled; the verbs policies are written in.

It knows what fits (rows, pages, seats) and keeps the books; in which order and with how many rows requests are asked is
the policy's. Not the place for results (`scheduler.py`).
"""

from bisect import insort
from collections.abc import Callable
from dataclasses import replace

from paceline.scheduling.batch import Grant, StepPlan
from paceline.scheduling.config import SchedulerConfig
from paceline.scheduling.pages import PagePool, extend_digests
from paceline.scheduling.request import RequestState, Status
from paceline.scheduling.stats import BatchStats


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
        self._pool = pool
        self._running = running
        self._decodes: dict[str, Grant] = {}
        self._prefills: dict[str, Grant] = {}
        self._preempted: list[RequestState] = []

    @property
    def decoding(self) -> list[RequestState]:
        """Requests that can decode, in scheduling order (a copy)."""
        return [request for request in self._running if request.status is Status.RUNNING]

    @property
    def prefilling(self) -> list[RequestState]:
        """Admitted requests with tokens left to prefill and no chunk in this step yet, in scheduling order (a copy)."""
        return [r for r in self._running if r.status is Status.PREFILL and r.request_id not in self._prefills]

    @property
    def num_rows(self) -> int:
        """Rows granted so far."""
        return sum(grant.num_rows for grant in (*self._decodes.values(), *self._prefills.values()))

    @property
    def rows_left(self) -> int:
        """Rows until the budget is spent, never negative."""
        return max(0, self.config.max_num_batched_tokens - self.num_rows)

    @property
    def num_prefills(self) -> int:
        return len(self._prefills)

    @property
    def has_preempted(self) -> bool:
        """Memory ran out in this step: do not admit anyone."""
        return bool(self._preempted)

    def decode(self, request: RequestState) -> bool:
        """Grant one row to a decoding request, taking pages from those behind it when none are free.

        Ask in scheduling order: the last request that has no grant yet is preempted first, `request` itself included.

        Returns:
            False when `request` was preempted, now or earlier in this step.
        """
        if request.status is not Status.RUNNING:
            return False
        missing = self._missing_pages(request, request.num_computed + 1)
        while missing > self._pool.num_free:
            victim = next(r for r in reversed(self._running) if not self._is_granted(r))
            self._preempt(victim)
            if victim is request:
                return False
        request.page_table += self._pool.allocate(missing)
        self._decodes[request.request_id] = Grant(request, start=request.num_computed)
        return True

    def prefill(self, request: RequestState, num_tokens: int) -> None:
        """Grant a chunk of at most `num_tokens`, nothing for 0. Its pages are there since the admission."""
        chunk = min(num_tokens, request.num_to_compute)
        if chunk > 0:
            ends = chunk == request.num_to_compute
            grant = Grant(request, num_prefill_tokens=chunk, start=request.num_computed, needs_logits=ends)
            self._prefills[request.request_id] = grant

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
        pool, size = self._pool, self._pool.page_size
        digests: list[bytes] = []
        if self.config.prefix_caching:
            extend_digests(digests, request.token_ids[:-1], size)
        cached = pool.longest_prefix(digests)
        pool.share(cached)
        slots = request.most_slots if reserve else request.num_tokens
        missing = pool.pages_for(slots) - len(cached)
        if missing > pool.num_free:
            pool.release(cached)
            return False
        self.waiting.remove(request)
        insort(self._running, request, key=by_order)
        request.page_table = cached + pool.allocate(missing)
        request.page_digests = digests[: len(cached)]
        request.num_computed = request.num_cached_tokens = len(cached) * size
        request.reserved_tokens = slots if reserve else 0
        request.status = Status.PREFILL
        return True

    def spread_drafts(self, wanted: Callable[[RequestState, BatchStats], int]) -> BatchStats:
        """Share what is left of the rows among the decodes' drafts, the smallest wishes first.

        Drafts come last: they shrink before anybody's decode or prefill does, never preempt, and never reach beyond
        the tokens the request may still emit.
        """
        rows_left = self.rows_left
        prefill_rows = sum(grant.num_rows for grant in self._prefills.values())
        batch = BatchStats(len(self._decodes), prefill_rows, rows_left)
        wishes = {id_: max(0, wanted(g.request, batch)) for id_, g in self._decodes.items()}
        useful = {id_: min(wish, self._decodes[id_].request.num_output_left - 1) for id_, wish in wishes.items()}
        asking = sorted((id_ for id_ in useful if useful[id_] > 0), key=useful.__getitem__)
        for place, id_ in enumerate(asking):
            share = -(-rows_left // (len(asking) - place))  # the earliest of equals takes what does not divide
            granted = self._grow(self._decodes[id_].request, min(useful[id_], share))
            self._decodes[id_] = replace(self._decodes[id_], draft_budget=granted, wanted_budget=wishes[id_])
            rows_left -= granted
        return batch

    def plan(self, batch: BatchStats) -> StepPlan:
        """The finished step."""
        return StepPlan((*self._decodes.values(), *self._prefills.values()), tuple(self._preempted), batch)

    def _grow(self, request: RequestState, num_nodes: int) -> int:
        """Pages for `num_nodes` draft rows, or for as many as free pages hold; returns how many."""
        slots = (len(request.page_table) + self._pool.num_free) * self._pool.page_size
        granted = min(num_nodes, slots - request.num_tokens)
        request.page_table += self._pool.allocate(self._missing_pages(request, request.num_tokens + granted))
        return granted

    def _missing_pages(self, request: RequestState, num_slots: int) -> int:
        return max(0, self._pool.pages_for(num_slots) - len(request.page_table))

    def _is_granted(self, request: RequestState) -> bool:
        return request.request_id in self._decodes or request.request_id in self._prefills

    def _preempt(self, request: RequestState) -> None:
        """Take everything back; prompt and output so far will be prefilled again."""
        self._running.remove(request)
        insort(self.waiting, request, key=by_order)
        self._pool.release(request.page_table)
        request.page_table = []
        request.page_digests = []
        request.num_computed = request.num_cached_tokens = request.reserved_tokens = 0
        request.num_preemptions += 1
        request.status = Status.WAITING
        self._preempted.append(request)
