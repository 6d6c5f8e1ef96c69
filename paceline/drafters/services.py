"""`DraftServices`: what an engine lends to the drafters it makes.

A drafter that needs none of it (prompt lookup) never sees it; one that does names a constructor argument `services`.
Not the place for what changes from step to step: that is a `DraftContext`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paceline.models.base import KVCache
from paceline.models.config import ModelConfig
from paceline.models.loaded import LoadedModel
from paceline.models.size import bytes_per_pass
from paceline.scheduling.pages import PagePool
from paceline.speculation.prices import CPU_BALANCE, LearnedPass, LearnedPrices, Prices, roofline


class LoadsModels(Protocol):
    """How a further model is had."""

    def __call__(
        self, name: str, dtype: str | None = None, ranks: Callable[[ModelConfig], int] | None = None, /
    ) -> LoadedModel:
        """The model called `name`.

        Args:
            dtype: how its weights are stored; None as the target's.
            ranks: how many processes share its layers, from its sizes; None for this one alone.
        """
        ...


@dataclass(frozen=True, eq=False, slots=True)
class DraftServices:
    """Attributes:
    target: the model that is drafted for.
    cache: the target's keys and values; to be written only where a `DraftContext` says so, and in borrowed pages.
    num_pages: pages of that cache, and a fair size for a drafter's own.
    pool: who holds which of them. A drafter may borrow pages to write to, and gives them back before `propose` returns.
    load: a further model by name, run as the target is (executor, threads, dtype); see `LoadsModels`. Raises what
        `resolve_model` raises.
    dtype: how the target's weights are stored.
    prices: what passes cost, learned as the engine runs.
    clock: seconds, monotonic, as the engine reads it.
    """

    target: LoadedModel
    cache: KVCache
    num_pages: int
    pool: PagePool
    load: LoadsModels
    dtype: str = "bfloat16"
    prices: Prices = field(default_factory=lambda: LearnedPrices(LearnedPass(roofline(CPU_BALANCE))))
    clock: Callable[[], float] = time.perf_counter

    def cost_ratio(self, drafts: Sequence[tuple[LoadedModel, str | None]], scored: int | None = None) -> float:
        """What a pass of `drafts` (each with its dtype, None for the target's) costs over a target pass of one row.

        By the bytes of their weights: a pass over one row takes as long as reading them. Drafts that leave out the
        most of their vocabulary read their output head for the first `scored` tokens.
        """
        read = sum(bytes_per_pass(draft.model.config, dtype or self.dtype, scored) for draft, dtype in drafts)
        return read / bytes_per_pass(self.target.model.config, self.dtype)

    def own_cost_ratio(self, num_layers: int | None = None, scored: int | None = None) -> float:
        """As `cost_ratio`, of a pass of the target over `num_layers` of its layers; the reading of keys aside."""
        config = self.target.model.config
        return bytes_per_pass(config, self.dtype, scored, num_layers) / bytes_per_pass(config, self.dtype)
