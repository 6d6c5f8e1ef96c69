"""`sparse_cache`: the target drafts with all its weights and sparse attention over its cache.

Chen et al. 2024 (MagicDec), by pages: drafts attend to a bounded number of the request's pages: the first ones
(attention sinks; Xiao et al. 2023, StreamingLLM), the latest ones, and with ``snapkv`` those in between that the latest
tokens attend to most (`snapkv.py`). Keys are stored with their absolute rotary positions, so pages are read in place.

A draft step reads all weights and `cache_budget` keys. It pays where reading keys costs more than reading weights: long
contexts, large batches. On short contexts a draft step costs as much as a plain step, so nothing is gained.
"""

from typing import Literal

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.self_drafts.self_draft import SelfDraft, View, WholeContext, common_of_target
from paceline.drafters.self_drafts.snapkv import MostLookedAt
from paceline.drafters.services import DraftServices
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.base import PAGE_SIZE, WeighsPages, pages_for

Selection = Literal["window", "snapkv"]

LATEST_PAGES = 2
"""Smallest number of latest pages: the last one may hold a single token."""


class SinksAndWindow:
    """The first pages and the latest ones, `budget` pages in all."""

    def __init__(self, budget: int, sinks: int) -> None:
        self._budget, self._sinks = budget, sinks
        self._whole = WholeContext()

    def view(self, context: DraftContext) -> View:
        """See `Sight`."""
        whole = self._whole.view(context)
        left_out = len(whole.pages) - self._budget
        if left_out <= 0:
            return whole
        pages = np.delete(whole.pages, slice(self._sinks, self._sinks + left_out))
        return View(pages, whole.num_keys - left_out * PAGE_SIZE)

    def release(self, request_id: str) -> None:
        """Do nothing."""


def make_sparse_cache(
    services: DraftServices,
    cache_budget: int = 512,
    num_sink_tokens: int = PAGE_SIZE,
    selection: Selection = "window",
    observation_window: int = 16,
    rescore_interval: int = 256,
    draft_vocab_size: int | None = None,
) -> SelfDraft:
    """The drafter that attends to at most `cache_budget` committed tokens.

    Args:
        cache_budget: committed keys that a draft may attend to, in whole pages of 16. From the context's length on it
            is full attention, and drafts equal the target's own tokens.
        num_sink_tokens: the part of the budget for the first tokens of the context.
        selection: use of the rest: the latest tokens (``window``), or a quarter of the budget for these and the rest
            for the pages in between that they attend to most (``snapkv``).
        observation_window: number of latest tokens whose attention ``snapkv`` measures.
        rescore_interval: tokens after which it measures again.
        draft_vocab_size: propose only the first that many tokens; for the default see `common_tokens`.

    Raises:
        InvalidParameter: an unknown selection, a number out of range, or a budget that does not hold the sinks and the
            latest tokens.
        UnsupportedModel: the executor cannot return attention scores, which ``snapkv`` needs, or cannot score a part of
            the vocabulary.
    """
    budget, sinks = cache_budget // PAGE_SIZE, pages_for(num_sink_tokens)
    if num_sink_tokens < 0:
        raise InvalidParameter("num_sink_tokens", f"{num_sink_tokens} is negative", "give 0 or more")
    if budget < sinks + LATEST_PAGES:
        problem = f"{cache_budget} tokens do not hold {sinks + LATEST_PAGES} pages of {PAGE_SIZE}"
        raise InvalidParameter("cache_budget", problem, f"give at least {(sinks + LATEST_PAGES) * PAGE_SIZE}")
    if selection not in Selection.__args__:
        raise InvalidParameter("selection", f"{selection!r} is unknown", f"use {' or '.join(Selection.__args__)}")
    for field, value in (("observation_window", observation_window), ("rescore_interval", rescore_interval)):
        if value < 1:
            raise InvalidParameter(field, f"{value} is less than 1", "give at least 1")
    if observation_window > cache_budget:
        problem = f"{observation_window} is more than cache_budget={cache_budget}"
        raise InvalidParameter("observation_window", problem, "lower it")
    sight = SinksAndWindow(budget, sinks)
    if selection == "snapkv":
        sight = _most_looked_at(services, budget, sinks, observation_window, rescore_interval)
    model = services.target.model
    if model.config.recurrence:
        problem = "is for models that read keys in every layer, and this one has recurrent layers"
        raise InvalidParameter("method", f"'sparse_cache' {problem}", "use suffix, ngram or draft_model")
    return SelfDraft("sparse_cache", services, model, sight, *common_of_target(services, model, draft_vocab_size))


def _most_looked_at(services: DraftServices, budget: int, sinks: int, window: int, interval: int) -> MostLookedAt:
    model = services.target.model
    if not isinstance(model, WeighsPages):
        raise UnsupportedModel("selection: this executor cannot tell where attention goes; use selection='window'")
    latest = max(LATEST_PAGES, (budget - sinks) // 4)
    return MostLookedAt(model, services.cache, services.pool, budget, sinks, latest, window, interval)
