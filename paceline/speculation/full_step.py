"""`FullStep`: prices of a step that prompts fill, where the rows of drafts displace rows of prompts.

Not for other steps, whose passes take the longer, the more is drafted (`prices.py`).
"""

from paceline.speculation.prices import Prices
from paceline.speculation.records import BatchStats


class FullStep:
    """The prices of a step whose prompts take all the rows that drafts leave them.

    Its pass takes t(B) for all B rows, whoever has them. A prompt's row that a draft took is computed in a later step,
    for its share of what prompts add to a step of n decodes: (t(B) - t(n)) / (B - n). That is the price of a draft's
    row, rather than the time that one row more adds to a pass.

    Args:
        prices: of passes and drafts.
        batch: the step, with the rows of prompts as they are without drafts.
    """

    def __init__(self, prices: Prices, batch: BatchStats) -> None:
        decodes, context = max(1, batch.num_decodes), batch.mean_context
        self._prices, self._rows = prices, batch.num_decodes + batch.num_prefill_rows
        self._seconds = prices.filled(self._rows, context)
        self._each = max(0.0, self._seconds - prices.target(decodes, context)) / batch.num_prefill_rows
        self.draft_level, self.reading, self.filled = prices.draft_level, prices.reading, prices.filled

    def target(self, rows: float, context: float = 0.0) -> float:
        """See `Prices`; rows beyond those of the step are computed in a later one."""
        if rows < self._rows:
            return self._prices.target(rows, context)
        return self._seconds + (rows - self._rows) * self._each

    def observe(self, step: object) -> None:
        """Do nothing: the prices of all steps learn."""


def prices_in(batch: BatchStats, prices: Prices) -> Prices:
    """`prices`, as they are in this step."""
    return FullStep(prices, batch) if batch.is_full and batch.num_prefill_rows else prices
