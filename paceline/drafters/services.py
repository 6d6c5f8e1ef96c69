"""`DraftServices`: resources of an engine for the drafters that it constructs.

A drafter gets them through a constructor argument named `services`, if it has one. Data that changes from step to step
is in `DraftContext`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.size import bytes_per_pass
from paceline.models.base import KVCache
from paceline.models.loaded import LoadedModel
from paceline.scheduling.pages import PagePool
from paceline.speculation.prices import CPU_BALANCE, LearnedPass, LearnedPrices, Prices, roofline


class LoadsModels(Protocol):
    """Loads a further model."""

    def __call__(
        self, name: str, dtype: str | None = None, ranks: Callable[[ModelConfig], int] | None = None, /
    ) -> LoadedModel:
        """The model called `name`.

        Args:
            dtype: of its weights; None is the target's.
            ranks: from its configuration to its tensor-parallel size; None for this process only.
        """
        ...


@dataclass(frozen=True, eq=False, slots=True)
class DraftServices:
    """What an engine lends to the drafters that it makes.

    Attributes:
        target: the model that is drafted for.
        cache: the target's keys and values. Write only to the slots that `DraftContext.page_table` allows, and to pages
            allocated from `pool`.
        num_pages: pages of that cache; also the usual size of a drafter's own.
        pool: its page allocator. A drafter may allocate pages, but must release them before `propose` returns.
        load: loads a further model by name with the target's executor, threads and dtype; see `LoadsModels`. Raises as
            `resolve_model`.
        dtype: of the target's weights.
        prices: costs of passes, learned while the engine runs.
        clock: the engine's clock: seconds, monotonic.
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
        """Cost of a pass of all `drafts` (each with its dtype, None for the target's) over that of a one-row target
        pass.

        Estimated by the bytes of the weights, since a one-row pass is bound by reading them. Drafts with a reduced
        vocabulary read their output head for the first `scored` tokens only.
        """
        read = sum(bytes_per_pass(draft.model.config, dtype or self.dtype, scored) for draft, dtype in drafts)
        return read / bytes_per_pass(self.target.model.config, self.dtype)

    def own_cost_ratio(self, num_layers: int | None = None, scored: int | None = None) -> float:
        """As `cost_ratio`, for a pass of `num_layers` of the target's layers; the reading of keys is not counted."""
        config = self.target.model.config
        return bytes_per_pass(config, self.dtype, scored, num_layers) / bytes_per_pass(config, self.dtype)
