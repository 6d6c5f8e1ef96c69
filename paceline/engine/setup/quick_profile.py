"""`quick_profile`: a quick measurement of pass costs on this machine, where there is no profile of `paceline tune`.

It takes half a second for a small model, so that the first draft lengths rest on measurements. Every pass of the engine
corrects it. Not for reports, nor for costs by context length: `evaluation/tune.py` measures those.
"""

from collections.abc import Callable

import numpy as np

from paceline.engine.loop.memory import small_cache
from paceline.engine.loop.target_pass import plain_pass
from paceline.models.base import CausalLM, RecordsPasses, pages_for
from paceline.models.rows import Part, build_rows
from paceline.models.state_book import only_time
from paceline.speculation import CostProfile

FEW, MANY = (1, 2, 4, 5, 6, 8), (12, 16, 32, 64)
"""Numbers of rows to measure. They are dense where draft lengths are decided; the largest is the default number of
requests that run together."""
CONTEXT = 256
"""Tokens in the cache before the rows, as in a conversation, so that attention is included."""
_TURNS = 8
"""Repetitions per number of rows. The minimum counts: the cost of one row is a small difference of noisy times."""
_ENOUGH_FEW, _ENOUGH, _MOST = 0.4, 0.6, 1.0
"""Time limits in seconds: for repeating `FEW`, for repeating `MANY`, and for measuring any number the first time."""


def quick_profile(model: CausalLM, clock: Callable[[], float]) -> CostProfile:
    """Seconds of a decoding pass by number of rows, up to 64.

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
    """Timed passes after `CONTEXT` unwritten cache positions; `seconds` has the minimum for each number of rows."""

    def __init__(self, model: CausalLM, clock: Callable[[], float]) -> None:
        self._model, self._clock, self._began = model, clock, clock()
        self._pages = range(pages_for(CONTEXT + MANY[-1]))
        self._cache = only_time(small_cache(model, len(self._pages)))
        self._tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, MANY[-1]).tolist()
        self.seconds: dict[int, float] = {}

    def try_all(self) -> None:
        """Run one untimed warm-up pass over each number of rows, and restart the clock."""
        for num_rows in (*FEW, *MANY):
            self.took(num_rows)
        self._began = self._clock()

    @property
    def elapsed(self) -> float:
        """Seconds since construction or `try_all`."""
        return self._clock() - self._began

    def measure(self, num_rows: int) -> None:
        """Time another pass over `num_rows` rows."""
        self.seconds[num_rows] = min(self.took(num_rows), self.seconds.get(num_rows, float("inf")))

    def took(self, num_rows: int) -> float:
        """Run a pass; returns its seconds, above 0 even on a coarse clock."""
        rows = build_rows([Part(self._pages, CONTEXT, self._tokens[:num_rows])])
        started = self._clock()
        plain_pass(self._model, rows, self._cache)
        return max(self._clock() - started, 1e-9)
