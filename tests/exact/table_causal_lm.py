"""A table model as a `CausalLM`: drafters with a cache of their own run on it over rationals.

Its cache keeps the token of every slot, and its "logits" are the tokens a row attends to, read from the cache through
the row's own slots; `warp` looks them up. A row that saw a wrong branch or a stale slot would look up a wrong law.
"""

from collections.abc import Sequence

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.models.base import ForwardOutput, Rows
from paceline.sampling import Law, Randomness
from paceline.types import SamplingParams
from tests.fakes import small_config

from .tables import Model, Prefix

NUM_PAGES = 4


class TableCache(dict[int, int]):
    """Token by slot."""

    num_pages = NUM_PAGES
    num_bytes = 0

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        self.update(zip(destinations, [self[slot] for slot in sources], strict=True))

    def read(self, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.array([self[slot] for slot in slots])
        return tokens, tokens


class TableLM:
    """Counts its passes and rows."""

    config = small_config()

    def __init__(self, model: Model) -> None:
        self.model = model
        self.rows_by_pass: list[int] = []

    def new_cache(self, num_pages: int) -> TableCache:
        return TableCache()

    def forward(self, rows: Rows, cache: TableCache, taps: tuple[int, ...] = ()) -> ForwardOutput:
        self.rows_by_pass.append(len(rows.token_ids))
        cache.update(zip(rows.slots.tolist(), rows.token_ids.tolist(), strict=True))
        logits = np.empty(len(rows.logit_rows), dtype=object)
        for i, row in enumerate(rows.logit_rows):
            logits[i] = [self.model(tuple(cache[slot] for slot in rows.key_slots(row).tolist()))]
        return ForwardOutput(logits)


def context(prefix: Prefix, budget: int, randomness: Randomness, **fields) -> DraftContext:
    """A context whose laws are those that a `TableLM` hands out as logits."""

    def warp(logits, path: Sequence[int]) -> Law:
        return logits[0]

    fields.setdefault("params", SamplingParams())
    return DraftContext("r", list(prefix), 1, budget, warp=warp, randomness=randomness, **fields)
