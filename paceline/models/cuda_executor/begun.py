"""`BegunPass`: a pass that was launched, and whether it is the one that the engine then asks for.

Not for which passes to launch (`foreseen.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import ref

import numpy as np
from torch import Tensor

from paceline.models.base import PAGE_SIZE, Rows
from paceline.models.cuda_executor.fetch import Fetched
from paceline.models.cuda_executor.following_rows import Roots
from paceline.models.cuda_executor.passes import Advance, CudaKVCache
from paceline.models.torch_executor.device_states import DeviceStates
from paceline.sampling.answered import Question

Questions = Sequence[Question]
Learn = Callable[["BegunPass", Roots, np.ndarray, np.ndarray], bool]
"""See `BegunPass.learn`."""


class Launch(Protocol):
    """Starts a pass."""

    def __call__(
        self, rows: Rows, cache: CudaKVCache, taps: tuple[int, ...], questions: Questions, *,
        is_foreseen: bool = False, advance: Advance | None = None, keys: Tensor | None = None,
    ) -> tuple[Tensor, DeviceStates | None]:  # fmt: skip
        """The table of answers to `questions` on the device, and the states of `taps`; see `CudaModel.launch`."""
        ...


@dataclass(eq=False, slots=True)
class BegunPass:
    """A pass that was launched.

    Attributes:
        rows: its rows, with tokens (and positions and slots, where drafts precede them) once they are known.
        taps: layers whose states it returns.
        questions: about its rows.
        cache: weak reference to its cache; `changes` is that of the cache when the pass was launched.
        number: number of passes of the network when it was launched, including this one.
        fetched: the answers.
        states: of the taps.
        has_drafts: whether it verifies drafts that were on the device only when it was launched.
        learn: given this pass, fills in what the pass before decides, of which it is also given where this one begins,
            committed rows and picks; False if this pass cannot be the next one. It must not hold the pass itself: the
            two would keep states and buffers until a garbage collection.
        waits: `learn` is to be called first. Until then `rows` may be a template, and the pass is not taken.
    """

    rows: Rows
    taps: tuple[int, ...]
    questions: Questions
    cache: ref[CudaKVCache]
    changes: int
    number: int
    fetched: Fetched
    states: DeviceStates | None
    has_drafts: bool = False
    learn: "Learn" = lambda *_: True
    waits: bool = False

    def places_of(
        self, rows: Rows, cache: CudaKVCache, taps: tuple[int, ...], questions: Questions
    ) -> np.ndarray | None:  # fmt: skip
        """Indices of `rows` in this pass; None where one is not in it or has another question there, its taps are
        others, the cache has changed since, or nobody waited for the pass before."""
        if self.waits or self.cache() is not cache or self.changes != cache.changes or self.taps != taps:
            return None
        known, size = self.rows, len(rows.slots)
        own = np.arange(size) if size == len(known.slots) else found_in(rows.slots, known.slots)
        if own is None or not are_rows(rows, known, own):
            return None
        if any(each.law != self.questions[place].law for each, place in zip(questions, own.tolist(), strict=True)):
            return None
        tables = rows.page_tables[rows.segments], known.page_tables[known.segments[own]]
        return own if have_same_pages(*tables, np.zeros_like(own), rows.positions // PAGE_SIZE + 1) else None


def found_in(slots: np.ndarray, known: np.ndarray) -> np.ndarray | None:
    """Index of each of `slots` in `known`; None if one is not there."""
    place_of = {slot: place for place, slot in enumerate(known.tolist())}
    places = np.array([place_of.get(slot, -1) for slot in slots.tolist()])
    return None if places.min() < 0 else places


def are_rows(rows: Rows, known: Rows, own: np.ndarray) -> bool:
    """Whether `rows` are those of `known` with the indices `own`: the same tokens at the same places."""
    names = "slots", "positions", "token_ids"
    return all(np.array_equal(getattr(rows, name), getattr(known, name)[own]) for name in names)


def have_same_pages(tables: np.ndarray, known: np.ndarray, begin: np.ndarray, end: np.ndarray) -> bool:
    """Whether each line i of two page tables has the same pages from `begin[i]` up to `end[i]`."""
    width = min(tables.shape[1], known.shape[1])
    if end.max() > width:
        return False
    numbers = np.arange(width)
    is_used = (numbers >= begin[:, None]) & (numbers < end[:, None])
    return not ((tables[:, :width] != known[:, :width]) & is_used).any()
