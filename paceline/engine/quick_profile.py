"""`quick_profile`: what passes cost here, by some of them, where nobody ran `paceline tune`.

Half a second for a small model, so that the first drafts are decided by this machine and not by a guess. Every
pass of the engine corrects it. Not for reports, nor for the price of contexts: `evaluation/tune.py` measures those.
"""

from collections.abc import Callable

import numpy as np

from paceline.models.base import CausalLM, pages_for
from paceline.models.rows import Part, build_rows
from paceline.speculation import CostProfile

ROWS = (1, 2, 4, 6, 8, 12, 16, 32, 64)
"""Numbers of rows to try: each drafted row is bought at the price these tell, so the first ones lie close, and the last
is as many requests as run together by default."""
CONTEXT = 256
"""Tokens in the cache before them, as in a conversation: a row's attention is part of its price."""
_TURNS = 6
"""Times that each is tried, the quickest counts: what one row costs is a small difference of noisy numbers."""
_ENOUGH, _MOST = 0.4, 1.0
"""Seconds after which nothing is tried again, and nothing for the first time."""


def quick_profile(model: CausalLM, clock: Callable[[], float]) -> CostProfile:
    """Seconds of decoding passes over up to 64 rows.

    Args:
        clock: seconds, monotonic.
    """
    pages = range(pages_for(CONTEXT + max(ROWS)))
    cache = model.new_cache(len(pages))
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, max(ROWS)).tolist()
    seconds: dict[int, float] = {}
    began = clock()
    for turn, num_rows in enumerate((ROWS[0], *ROWS * _TURNS)):  # the first pass reads the weights and does not count
        rows = build_rows([Part(pages, CONTEXT, tokens[:num_rows])])
        started = clock()
        model.forward(rows, cache)
        took = max(clock() - started, 1e-9)
        seconds[num_rows] = took if turn <= 1 else min(took, seconds.get(num_rows, took))
        if clock() - began > (_MOST if turn < len(ROWS) else _ENOUGH):
            break
    return CostProfile(seconds)
