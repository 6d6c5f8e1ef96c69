"""Page selection ``snapkv`` of the sparse-cache drafter: the pages that the latest tokens attend to most.

Li et al. 2024 (SnapKV): the last rows of a text and the next ones attend to the same tokens. Here one selection of
pages is made for all layers and heads, by the attention of an observation window to everything before it. It takes one
pass over the window's tokens per request, on temporarily allocated pages, repeated after `rescore_interval` tokens. The
drafter itself: `sparse_cache.py`.
"""

from dataclasses import dataclass, replace

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.self_drafts.self_draft import View, WholeContext
from paceline.models.base import PAGE_SIZE, KVCache, WeighsPages, pages_for
from paceline.models.overlay import Overlay, overlay_rows
from paceline.scheduling.pages import PagePool

NO_ROWS = np.zeros(0, np.int32)


@dataclass(frozen=True, eq=False, slots=True)
class _Scores:
    """Attention per page, when the text was `length` tokens long."""

    length: int
    by_page: np.ndarray


class MostLookedAt:
    """The first pages, the latest ones, and those between them with the most attention; `budget` pages in all.

    Args:
        model, cache, pool: the target's.
        budget, sinks, latest: number of pages in all, at the beginning, and at the end.
        window: number of latest tokens whose attention is measured.
        interval: tokens after which the measurement is repeated.
    """

    def __init__(
        self, model: WeighsPages, cache: KVCache, pool: PagePool,
        budget: int, sinks: int, latest: int, window: int, interval: int,
    ) -> None:  # fmt: skip
        self._model, self._cache, self._pool = model, cache, pool
        self._budget, self._sinks, self._latest = budget, sinks, latest
        self._window, self._interval = window, interval
        self._whole = WholeContext()
        self._scores: dict[str, _Scores] = {}

    def view(self, context: DraftContext) -> View:
        """See `Sight`."""
        whole = self._whole.view(context)
        left_out = len(whole.pages) - self._budget
        if left_out <= 0:
            return whole
        middle = np.arange(self._sinks, len(whole.pages) - self._latest)
        scores = self._scores_of(context, whole)[middle]
        gone = middle[np.argsort(scores, kind="stable")[:left_out]]
        return View(np.delete(whole.pages, gone), whole.num_keys - left_out * PAGE_SIZE)

    def release(self, request_id: str) -> None:
        """Forget a request's scores."""
        self._scores.pop(request_id, None)

    def _scores_of(self, context: DraftContext, whole: View) -> np.ndarray:
        """Attention per page of the context; pages that came after the last measurement have none."""
        known, length = self._scores.get(context.request_id), len(context.token_ids)
        if known is None or not 0 <= length - known.length < self._interval:
            known = self._scores[context.request_id] = _Scores(length, self._measure(context, whole))
        by_page = np.zeros(len(whole.pages), np.float32)
        by_page[: len(known.by_page)] = known.by_page
        return by_page

    def _measure(self, context: DraftContext, whole: View) -> np.ndarray:
        """Attention of the observation window to each page before it; empty where no pages are free."""
        missing = self._pool.pages_for(self._window)
        if missing > self._pool.num_free:
            return np.zeros(0, np.float32)
        borrowed = self._pool.allocate(missing)
        try:
            slots = [page * PAGE_SIZE + place for page in borrowed for place in range(PAGE_SIZE)]
            start = whole.num_keys - self._window
            pages = whole.pages[: pages_for(start)]
            rows = [
                Overlay(context.token_ids[start + i], pages, start, start + i, slots[: i + 1])
                for i in range(self._window)
            ]
            looked = self._model.page_attention(replace(overlay_rows(rows), logit_rows=NO_ROWS), self._cache)
        finally:
            self._pool.release(borrowed)
        return looked.sum(axis=0)
