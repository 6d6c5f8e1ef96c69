"""`sparse_cache`: the target drafts with all of its weights and few of its keys.

Chen et al. 2024 (MagicDec), page by page: drafts attend to a bounded number of the request's pages, those of the
beginning (attention sinks; Xiao et al. 2023, StreamingLLM), the latest ones, and with ``snapkv`` those in between that
the latest tokens look at most (`snapkv.py`). Keys carry their absolute rotation, so pages are read where they lie.

A draft step costs a pass over all weights and `cache_budget` keys. It pays where reading keys costs more than reading
weights: long contexts, large batches. On short contexts a draft step costs what a plain step costs, and nothing can be
gained.
"""

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.self_draft import SelfDraft, View, WholeContext
from paceline.drafters.services import DraftServices
from paceline.errors import InvalidParameter
from paceline.models.base import PAGE_SIZE

LATEST_PAGES = 2
"""Fewest pages of latest tokens: the last one may have just begun."""


class SinksAndWindow:
    """The first pages and the latest ones, `budget` pages in all."""

    def __init__(self, budget: int, sinks: int) -> None:
        self._budget, self._sinks = budget, sinks
        self._whole = WholeContext()

    def view(self, context: DraftContext) -> View:
        whole = self._whole.view(context)
        left_out = len(whole.pages) - self._budget
        if left_out <= 0:
            return whole
        pages = np.delete(whole.pages, slice(self._sinks, self._sinks + left_out))
        return View(pages, whole.num_keys - left_out * PAGE_SIZE)

    def release(self, request_id: str) -> None:
        """Nothing to forget."""


def make_sparse_cache(
    services: DraftServices,
    cache_budget: int = 512,
    num_sink_tokens: int = PAGE_SIZE,
) -> SelfDraft:
    """The drafter that attends to at most `cache_budget` committed tokens.

    Args:
        cache_budget: keys a draft may attend to besides drafted ones; whole pages of 16. At least the context's length
            is full attention, and drafts are then the target's own tokens.
        num_sink_tokens: of these, tokens of the context's beginning.

    Raises:
        InvalidParameter: the budget does not hold the sinks and the latest tokens.
    """
    budget, sinks = cache_budget // PAGE_SIZE, -(-num_sink_tokens // PAGE_SIZE)
    if num_sink_tokens < 0:
        raise InvalidParameter("num_sink_tokens", f"{num_sink_tokens} is negative", "give 0 or more")
    if budget < sinks + LATEST_PAGES:
        problem = f"{cache_budget} tokens do not hold {sinks + LATEST_PAGES} pages of {PAGE_SIZE}"
        raise InvalidParameter("cache_budget", problem, f"give at least {(sinks + LATEST_PAGES) * PAGE_SIZE}")
    return SelfDraft("sparse_cache", services, services.target.model, SinksAndWindow(budget, sinks))
