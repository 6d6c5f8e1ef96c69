"""`SelfDraft`: the target drafts for itself, cheaper than it verifies, on its own cache.

Two ways of being cheaper, one file each: fewer layers (`layer_skip.py`) and fewer keys (`sparse_cache.py`). Both read
the keys and values of committed tokens where the target has put them, so a draft begins without reading the prompt
again and keeps no cache of its own. Drafted tokens go to the slots that the target has been granted for verifying them,
which it overwrites: a draft needs no memory of its own, and committed keys and values are never written.

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
from paceline.drafters.common_tokens import CommonTokens, common_tokens
from paceline.drafters.drawn_chains import DrawnChains
from paceline.drafters.services import DraftServices
from paceline.drafters.trees.growth import Growth
from paceline.models.base import PAGE_SIZE, CausalLM, KVCache, pages_for, slot_of
from paceline.models.overlay import Overlay, overlay_rows
from paceline.sampling.randomness import ROOT


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
        """See `Sight`."""
        num_keys = len(context.token_ids) - 1
        return View(np.asarray(context.page_table[: pages_for(num_keys)], np.int32), num_keys)

    def release(self, request_id: str) -> None:
        """Nothing to forget."""


@dataclass(slots=True)
class _Draft:
    """A request's draft in the making: what it sees, slots to use (the next one last), slots down to each node."""

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
        """Go on with another view of the same weights, whose caches are the same."""
        self._model = model

    def can_hold(self, growth: Growth) -> bool:
        """Whether the request has slots for the root and the tree, as it has when the tree keeps to its budget."""
        context = growth.context
        return len(context.token_ids) + growth.max_rows <= len(context.page_table) * PAGE_SIZE

    def admit(self, growths: Sequence[Growth]) -> Sequence[Growth]:
        """All of them; drafts of earlier calls end."""
        self._drafts = {growth.context.request_id: self._begin(growth) for growth in growths}
        return growths

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]:
        """One pass: for each admitted growth the logits [len(nodes), vocab] below its `nodes`, good until the next."""
        rows = [self._row(growth, node) for growth, nodes in work for node in nodes]
        logits = self._model.forward(overlay_rows(rows), self._cache).logits
        return np.split(logits, np.cumsum([len(nodes) for _, nodes in work])[:-1])

    def release(self, request_id: str) -> None:
        """Forget a request; what was drafted lies in slots that are the target's own."""
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
        cost_ratio: one of its passes over one of the target's, the reading of keys aside.
        common: as of `DrawnChains`.
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
    """`cost_ratio` and `common` of drafts that score `size` tokens with `model`, `num_layers` layers of the target.

    Raises:
        InvalidParameter, UnsupportedModel: see `common_tokens`.
    """
    common = common_tokens(model, size)
    return services.own_cost_ratio(num_layers, None if common is None else len(common.ids)), common
