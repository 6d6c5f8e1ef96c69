"""`DraftServices`: what an engine lends to the drafters it makes.

A drafter that needs none of it (prompt lookup) never sees it; one that does names a constructor argument `services`.
Not the place for what changes from step to step: that is a `DraftContext`.
"""

from dataclasses import dataclass
from typing import Protocol

from paceline.models.base import KVCache
from paceline.models.loaded import LoadedModel
from paceline.scheduling.pages import PagePool


class LoadsModels(Protocol):
    """How a further model is had."""

    def __call__(self, name: str, dtype: str | None = None, /) -> LoadedModel:
        """The model called `name`, its weights stored as `dtype` (None: as the target's)."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class DraftServices:
    """Attributes:
    target: the model that is drafted for.
    cache: the target's keys and values; to be written only where a `DraftContext` says so, and in borrowed pages.
    num_pages: pages of that cache, and a fair size for a drafter's own.
    pool: who holds which of them. A drafter may borrow pages to write to, and gives them back before `propose` returns.
    load: a further model by name, run as the target is (executor, threads, dtype); a second argument names another
        dtype. Raises what `resolve_model` raises.
    dtype: how the target's weights are stored.
    """

    target: LoadedModel
    cache: KVCache
    num_pages: int
    pool: PagePool
    load: LoadsModels
    dtype: str = "bfloat16"
