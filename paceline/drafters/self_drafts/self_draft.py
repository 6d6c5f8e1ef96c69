"""`SelfDraft`: self-speculative decoding: a cheaper version of the target drafts on the target's own cache.

Two versions, one file each: fewer layers (`layer_skip.py`) and fewer keys (`sparse_cache.py`). Both read the target's
keys and values of committed tokens, so they need no prefill and no cache of their own. Keys and values of drafted
tokens are written to the slots that were granted for verification, which overwrites them; those of committed tokens are
never written.

Using the target's keys is also right for skipped layers: for committed tokens a kept layer then sees what the whole
model computed, which is the better context (Zhang et al. 2023, Draft and Verify). Only the drafted tokens' keys come
from the shortened model. Tokens are drawn from laws that are passed on, so every exact rule stays exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.runners.common_tokens import CommonTokens, common_tokens
from paceline.drafters.runners.drawn_chains import DrawnChains
from paceline.drafters.services import DraftServices
from paceline.drafters.trees.growth import Growth
from paceline.models.base import PAGE_SIZE, CausalLM, KVCache, pages_for, slot_of
from paceline.models.overlay import Overlay, overlay_rows
from paceline.sampling.randomness import ROOT


@dataclass(frozen=True, eq=False, slots=True)
class View:
    """The part of a context that drafts attend to: `pages` [n] in order of position, and their number of keys."""

    pages: np.ndarray
    num_keys: int


class Sight(Protocol):
    """Chooses the pages that drafts attend to."""

    def view(self, context: DraftContext) -> View:
        """Pages of `context.page_table` to attend to; the last one holds the latest committed tokens."""
        ...

    def release(self, request_id: str) -> None:
        """Forget a request."""
        ...


class WholeContext:
    """All pages."""

    def view(self, context: DraftContext) -> View:
        """See `Sight`."""
        num_keys = len(context.token_ids) - 1
        return View(np.asarray(context.page_table[: pages_for(num_keys)], np.int32), num_keys)

    def release(self, request_id: str) -> None:
        """Do nothing."""


@dataclass(slots=True)
class _Draft:
    """A request's draft in progress: its view, unused slots (the next one last), and the slots on each node's path."""

    view: View
    free_slots: list[int]
    slots_to: dict[int, list[int]]


class TargetRunner:
    """Scores growing trees with `model` on the target's own cache.

    Args:
        model: the target, or a view of it with fewer layers.
        cache: the target's.
        sight: what drafts attend to.
    """

    def __init__(self, model: CausalLM, cache: KVCache, sight: Sight) -> None:
        self._model, self._cache, self._sight = model, cache, sight
        self._drafts: dict[str, _Draft] = {}

    def score_with(self, model: CausalLM) -> None:
        """Switch to another view of the same weights; the cache stays valid."""
        self._model = model

    def can_hold(self, growth: Growth) -> bool:
        """Whether the request's page table has slots for the root and the tree; true for a tree within its budget."""
        context = growth.context
        return len(context.token_ids) + growth.max_rows <= len(context.page_table) * PAGE_SIZE

    def admit(self, growths: Sequence[Growth]) -> Sequence[Growth]:
        """Admit all of them; drafts of earlier calls are dropped."""
        self._drafts = {growth.context.request_id: self._begin(growth) for growth in growths}
        return growths

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]:
        """Run one pass: for each admitted growth the logits [len(nodes), vocab] after its nodes, valid until the
        next."""
        rows = [self._row(growth, node) for growth, nodes in work for node in nodes]
        logits = self._model.forward(overlay_rows(rows), self._cache).logits
        return np.split(logits, np.cumsum([len(nodes) for _, nodes in work])[:-1])

    def release(self, request_id: str) -> None:
        """Forget a request; its drafted tokens are in the target's slots, which need no release."""
        self._sight.release(request_id)

    def _begin(self, growth: Growth) -> _Draft:
        context = growth.context
        root = len(context.token_ids) - 1
        slots = [slot_of(context.page_table, root + row) for row in range(growth.max_rows, -1, -1)]
        return _Draft(self._sight.view(context), slots, {})

    def _row(self, growth: Growth, node: int) -> Overlay:
        draft, token_ids = self._drafts[growth.context.request_id], growth.context.token_ids
        above = [] if node == ROOT else draft.slots_to[growth.parents[node]]
        slots = draft.slots_to[node] = [*above, draft.free_slots.pop()]
        token = token_ids[-1] if node == ROOT else growth.tokens[node]
        return Overlay(token, draft.view.pages, draft.view.num_keys, len(token_ids) - 2 + len(slots), slots)


class SelfDraft(DrawnChains):
    """Chains of a `TargetRunner`.

    Args:
        model: the target, or a view of it with fewer layers.
        sight: what drafts attend to, by default everything.
        cost_ratio: cost of one of its passes over that of a target pass, without the reading of keys.
        common: see `DrawnChains`.
    """

    def __init__(
        self,
        name: str,
        services: DraftServices,
        model: CausalLM,
        sight: Sight | None = None,
        cost_ratio: float = 1.0,
        common: CommonTokens | None = None,
    ) -> None:
        super().__init__(name, TargetRunner(model, services.cache, sight or WholeContext()), cost_ratio, common)


def common_of_target(
    services: DraftServices, model: CausalLM, size: int | None, num_layers: int | None = None
) -> tuple[float, CommonTokens | None]:
    """(`cost_ratio`, `common`) of drafts with `model`, which has `num_layers` of the target's layers.

    Args:
        size: number of tokens to score; see `common_tokens`.

    Raises:
        InvalidParameter, UnsupportedModel: see `common_tokens`.
    """
    common = common_tokens(model, size)
    return services.own_cost_ratio(num_layers, None if common is None else len(common.ids)), common
