"""`SelfDraft`: the target drafts for itself, cheaper than it verifies, on its own cache.

Two ways of being cheaper, one file each: fewer layers (`layer_skip.py`) and fewer keys (`sparse_cache.py`). Both read
the keys and values of committed tokens where the target has put them, so a draft begins without reading the prompt
again and keeps no cache of its own. Drafted tokens go to pages borrowed from the pool for the length of one `propose`;
the target's own pages are never written.

Reading the target's keys is right for skipped layers too: a kept layer sees, for committed tokens, what the whole model
would have shown it, which is the better context (Zhang et al. 2023, Draft and Verify). Only the drafted tokens' own
keys are the shortened model's. Whatever they are, tokens are drawn from laws that are handed on, so every exact rule
stays exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.draft_runner import grow_all
from paceline.drafters.services import DraftServices
from paceline.drafters.trees.drawn import Drawn
from paceline.drafters.trees.growth import Growth
from paceline.models.base import PAGE_SIZE, CausalLM, KVCache, pages_for
from paceline.models.overlay import Overlay, overlay_rows
from paceline.sampling.randomness import ROOT
from paceline.sampling.tree import TokenTree
from paceline.scheduling.pages import PagePool


@dataclass(frozen=True, eq=False, slots=True)
class View:
    """What of a context drafts attend to: `pages` [n] in order of position, and how many keys lie in them."""

    pages: np.ndarray
    num_keys: int


class Sight(Protocol):
    """Chooses the pages."""

    def view(self, context: DraftContext) -> View:
        """Pages of `context.page_table` to attend to; the last one holds the latest committed tokens."""
        ...

    def release(self, request_id: str) -> None:
        """Forget a request."""
        ...


class WholeContext:
    """All pages."""

    def view(self, context: DraftContext) -> View:
        num_keys = len(context.token_ids) - 1
        return View(np.asarray(context.page_table[: pages_for(num_keys)], np.int32), num_keys)

    def release(self, request_id: str) -> None:
        """Nothing to forget."""


@dataclass(slots=True)
class _Draft:
    """A request's draft in the making: what it sees, its borrowed slots, and the slots down to each node."""

    view: View
    free_slots: list[int]
    slots_to: dict[int, list[int]]


class TargetRunner:
    """Scores growing trees with `model` on the target's own cache.

    Args:
        model: the target, or a view of it with fewer layers.
        cache, pool: the target's.
        sight: what drafts attend to.
    """

    def __init__(self, model: CausalLM, cache: KVCache, pool: PagePool, sight: Sight) -> None:
        self._model, self._cache, self._pool, self.sight = model, cache, pool, sight
        self._drafts: dict[str, _Draft] = {}
        self._borrowed: list[int] = []

    def admit(self, growth: Growth) -> bool:
        """Borrow pages for the root and the tree; False when too few are free."""
        view = self.sight.view(growth.context)
        missing = self._pool.pages_for(1 + growth.max_rows)
        if missing > self._pool.num_free:
            return False
        pages = self._pool.allocate(missing)
        self._borrowed += pages
        slots = [page * PAGE_SIZE + place for page in reversed(pages) for place in reversed(range(PAGE_SIZE))]
        self._drafts[growth.context.request_id] = _Draft(view, slots, {})
        return True

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]:
        """One pass: for each admitted growth the logits [len(nodes), vocab] below its `nodes`, good until the next."""
        rows = [self._row(growth, node) for growth, nodes in work for node in nodes]
        logits = self._model.forward(overlay_rows(rows), self._cache).logits
        return np.split(logits, np.cumsum([len(nodes) for _, nodes in work])[:-1])

    def give_back(self) -> None:
        """End all drafts and return what was borrowed."""
        self._pool.release(self._borrowed)
        self._borrowed, self._drafts = [], {}

    def _row(self, growth: Growth, node: int) -> Overlay:
        draft, token_ids = self._drafts[growth.context.request_id], growth.context.token_ids
        above = [] if node == ROOT else draft.slots_to[growth.parents[node]]
        slots = draft.slots_to[node] = [*above, draft.free_slots.pop()]
        token = token_ids[-1] if node == ROOT else growth.tokens[node]
        return Overlay(token, draft.view.pages, draft.view.num_keys, len(token_ids) - 2 + len(slots), slots)


class SelfDraft:
    """Draws chains with a `TargetRunner`, one pass per level for all requests.

    Attributes:
        cost_ratio: one of its passes over one of the target's, the reading of keys aside.
    """

    def __init__(
        self,
        name: str,
        services: DraftServices,
        model: CausalLM,
        sight: Sight | None = None,
        cost_ratio: float = 1.0,
    ) -> None:
        self.name, self.cost_ratio = name, cost_ratio
        self.runner = TargetRunner(model, services.cache, services.pool, sight or WholeContext())

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One chain per context, drawn from the shortened target's own laws; empty when no pages are free."""
        growths = [Drawn(context) for context in contexts]
        try:
            grow_all([self.runner], growths)
        finally:
            self.runner.give_back()
        return [growth.tree() for growth in growths]

    def observe(self, request_id: str, token_ids: Sequence[int], finished: bool) -> None:
        """Nothing to learn: the cache is the target's."""
        if finished:
            self.release(request_id)

    def release(self, request_id: str) -> None:
        self.runner.sight.release(request_id)
