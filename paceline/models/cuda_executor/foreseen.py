"""`Foreseen`: the next pass of requests that decode without drafts, launched before anybody asks for it.

Between two passes the host commits tokens, plans a step and packs its rows, and the device waits. The next step of
greedy requests without drafts can be told from this one: the same rows one position on, whose tokens are the picks, and
those are on the device. So that pass is launched before this one's picks are fetched, and the host works meanwhile.
When the engine then asks for what was foreseen, or for some rows of it, the answers are on their way. When it asks for
anything else, that pass was for nothing; what it wrote lies after everybody's last token, where whoever reads first
writes.

Not for drawn tokens, whose noise the engine numbers, nor for drafts, which wait for verdicts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import ref

import numpy as np

from paceline.models.base import PAGE_SIZE, Rows
from paceline.models.cuda_executor.fetch import Fetch, Fetched
from paceline.models.cuda_executor.passes import CudaKVCache, Launched, Passes
from paceline.sampling.answered import Question

_MEMORY = 1 / 8
"""What the latest step counts for in what steps are usually like."""


class Launch(Protocol):
    """Starts a pass."""

    def __call__(self, rows: Rows, cache: CudaKVCache, *, is_foreseen: bool = False) -> Launched:
        """See `CudaModel.launch`."""
        ...


@dataclass(eq=False, slots=True)
class _Pass:
    """A pass on its way.

    Attributes:
        rows: what it computes, tokens included once they are known.
        cache: over which, as long as somebody else keeps it; `changes` of it when the pass was launched.
        number: of passes of the network, this one included, when it was launched.
        fetched: its peaks.
    """

    rows: Rows
    cache: ref[CudaKVCache]
    changes: int
    number: int
    fetched: Fetched


class Foreseen:
    """The plain passes of one model.

    A pass is launched ahead while what that saves, the host's time between two steps as often as steps are as foreseen,
    is more than what it costs otherwise, a pass for nothing. What that takes is measured first.

    Args:
        launch: starts one.
        has_recorded: whether a pass over these rows and this cache has its graph; see `Passes.has_recorded`.
        passes: counts them.
        fetch: brings peaks to the host; nobody else's.
        max_positions: of the model.
        clock: in seconds.

    Attributes:
        num_foreseen, num_taken: passes launched ahead, and those that were asked for then.
    """

    def __init__(
        self, launch: Launch, has_recorded: Callable[[Rows, CudaKVCache], bool], passes: Passes, fetch: Fetch,
        max_positions: int, clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._launch, self._has_recorded, self._passes, self._fetch = launch, has_recorded, passes, fetch
        self._max_positions, self._clock = max_positions, clock
        self._next: _Pass | None = None
        self._last: tuple[ref[CudaKVCache], int, int] | None = None
        self._share, self._pass_seconds, self._host_seconds, self._returned = 0.0, 0.0, 0.0, 0.0
        self.num_foreseen = self.num_taken = 0

    def peaks(self, rows: Rows, cache: CudaKVCache) -> np.ndarray:
        """[K, 2] the largest logits of `rows`, which `is_plain`; waits for them."""
        self._expect(rows, cache)
        ahead, self._next = self._next, None
        own = None if ahead is None else _places(rows, cache, ahead)
        began, num_graphs = self._clock(), len(cache.graphs)
        if ahead is None or own is None:
            current, own = self._begun(rows, cache), np.arange(len(rows.slots))
        else:
            current = ahead
            self.num_taken += 1
        if self._pass_seconds and self._share * self._host_seconds > (1 - self._share) * self._pass_seconds:
            self._next = self._begun_after(current, rows, own, cache)
        [peaks] = current.fetched.wait()
        peaks = peaks[own]
        if self._next is not None:
            self._next.rows.token_ids[:] = peaks[:, 0]
        if current is not ahead and self._next is None and num_graphs == len(cache.graphs):  # one pass and no more
            self._pass_seconds += _MEMORY * (self._clock() - began - self._pass_seconds)
        self._last = ref(cache), cache.changes, len(rows.slots)
        self._returned = self._clock()
        return peaks

    def _expect(self, rows: Rows, cache: CudaKVCache) -> None:
        """Note whether this step is one that could have been foreseen, and how long the host took before it."""
        follows = (
            self._last is not None
            and self._last[:2] == (ref(cache), cache.changes)
            and len(rows.slots) <= self._last[2]
        )
        self._share += _MEMORY * (follows - self._share)
        if follows:
            self._host_seconds += _MEMORY * (self._clock() - self._returned - self._host_seconds)

    def _begun(self, rows: Rows, cache: CudaKVCache, is_foreseen: bool = False) -> _Pass:
        peaks = self._launch(rows, cache, is_foreseen=is_foreseen).peaks
        return _Pass(rows, ref(cache), cache.changes, self._passes.num_launched, self._fetch(peaks))

    def _begun_after(self, current: _Pass, rows: Rows, own: np.ndarray, cache: CudaKVCache) -> _Pass | None:
        """The pass after `current`, of which `own` are the numbers of `rows`; None if it cannot be launched yet."""
        if current.number != self._passes.num_launched:  # its picks are no longer on the device
            return None
        following = self._following(rows, own)
        if following is None or not self._has_recorded(following, cache):
            return None
        try:
            begun = self._begun(following, cache, is_foreseen=True)
        except RuntimeError:  # whoever asks for that pass will see what is wrong with it
            return None
        self.num_foreseen += 1
        return begun

    def _following(self, rows: Rows, own: np.ndarray) -> Rows | None:
        """The rows after `rows`, which are numbers `own` of a pass; None where a page is not known yet."""
        positions, numbers = rows.positions + 1, np.arange(len(own), dtype=np.int32)
        index = positions // PAGE_SIZE
        if positions.max() >= self._max_positions or index.max() >= rows.page_tables.shape[1]:
            return None
        pages = rows.page_tables[numbers, index]
        if pages.min() < 0:
            return None
        slots = pages * PAGE_SIZE + positions % PAGE_SIZE
        return Rows(
            (-1 - own).astype(np.int32),
            positions,
            slots,
            numbers,
            rows.page_tables,
            positions + 1,
            rows.branch_slots,
            numbers,
        )


def is_plain(rows: Rows, taps: tuple[int, ...], questions: Sequence[Question | None]) -> bool:
    """Whether each request has one row, in its pages, and is asked for nothing but where its logits are largest."""
    size = len(rows.slots)
    if taps or not size == len(rows.logit_rows) == len(rows.page_tables) or rows.branch_slots.size:
        return False
    if rows.num_keys is not None or (rows.segments != np.arange(size)).any():
        return False
    return all([each is not None and each.takes_argmax and not each.trials for each in questions])


def _places(rows: Rows, cache: CudaKVCache, ahead: _Pass) -> np.ndarray | None:
    """Which rows of a foreseen pass `rows` are; None where one is not, or the cache has changed since."""
    if ahead.cache() is not cache or ahead.changes != cache.changes:
        return None
    known = ahead.rows
    if len(rows.slots) == len(known.slots):
        own = np.arange(len(rows.slots))
    else:
        place_of = {slot: place for place, slot in enumerate(known.slots.tolist())}
        own = np.array([place_of.get(slot, -1) for slot in rows.slots.tolist()])
        if own.min() < 0:
            return None
    for name in ("slots", "positions", "token_ids"):
        if not np.array_equal(getattr(rows, name), getattr(known, name)[own]):
            return None
    pages = rows.positions // PAGE_SIZE + 1
    width = min(rows.page_tables.shape[1], known.page_tables.shape[1])
    if pages.max() > width:
        return None
    differs = rows.page_tables[:, :width] != known.page_tables[own, :width]
    return None if (differs & (np.arange(width) < pages[:, None])).any() else own
