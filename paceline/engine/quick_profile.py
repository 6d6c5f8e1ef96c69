"""`quick_profile`: what passes cost here, by some of them, where nobody ran `paceline tune`.

Half a second for a small model, so that the first drafts are decided by this machine and not by a guess. Every
pass of the engine corrects it. Not for reports, nor for the price of contexts: `evaluation/tune.py` measures those.
"""

from collections.abc import Callable

import numpy as np

from paceline.models.base import CausalLM, RecordsPasses, pages_for
from paceline.models.rows import Part, build_rows
from paceline.speculation import CostProfile

FEW, MANY = (1, 2, 4, 5, 6, 8), (12, 16, 32, 64)
"""Numbers of rows to try: each drafted row is bought at the price these tell, so the first ones lie close, and the last
is as many requests as run together by default."""
CONTEXT = 256
"""Tokens in the cache before them, as in a conversation: a row's attention is part of its price."""
_TURNS = 8
"""Times that each is tried, the quickest counts: what one row costs is a small difference of noisy numbers."""
_ENOUGH_FEW, _ENOUGH, _MOST = 0.4, 0.6, 1.0
"""Seconds after which few rows, any rows, are not tried again, and after which nothing is tried for the first time."""


def quick_profile(model: CausalLM, clock: Callable[[], float]) -> CostProfile:
    """Seconds of decoding passes over up to 64 rows.

    Args:
        clock: seconds, monotonic.
    """
    passes = _Passes(model, clock)
    passes.took(FEW[0])  # the first pass reads the weights and does not count
    if isinstance(model, RecordsPasses) and model.records_passes:
        passes.try_all()
    for all_rows, enough in ((FEW, _ENOUGH_FEW), (MANY, _ENOUGH)):
        for _ in range(_TURNS):
            for num_rows in all_rows:
                if passes.elapsed < (enough if num_rows in passes.seconds else _MOST):
                    passes.measure(num_rows)
    return CostProfile(passes.seconds)


class _Passes:
    """Passes over some rows after `CONTEXT` tokens that nobody wrote; `seconds` has the quickest of each."""

    def __init__(self, model: CausalLM, clock: Callable[[], float]) -> None:
        self._model, self._clock, self._began = model, clock, clock()
        self._pages = range(pages_for(CONTEXT + MANY[-1]))
        self._cache = model.new_cache(len(self._pages))
        self._tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, MANY[-1]).tolist()
        self.seconds: dict[int, float] = {}

    def try_all(self) -> None:
        """One pass over each number of rows that does not count, nor does its time."""
        for num_rows in (*FEW, *MANY):
            self.took(num_rows)
        self._began = self._clock()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began

    def measure(self, num_rows: int) -> None:
        """One more pass over `num_rows` rows."""
        self.seconds[num_rows] = min(self.took(num_rows), self.seconds.get(num_rows, float("inf")))

    def took(self, num_rows: int) -> float:
        """Seconds of a pass, more than 0 on the coarsest clock."""
        rows = build_rows([Part(self._pages, CONTEXT, self._tokens[:num_rows])])
        started = self._clock()
        self._model.forward(rows, self._cache)
        return max(self._clock() - started, 1e-9)
