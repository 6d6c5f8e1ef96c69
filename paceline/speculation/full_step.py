"""`FullStep`: prices of a step that a prompt fills, where the rows of drafts displace rows of that prompt.

Not for other steps, whose passes take longer the more is drafted (`prices.py`).
"""

from paceline.speculation.prices import Prices
from paceline.speculation.records import BatchStats


class FullStep:
    """The prices of a step in which a prompt takes all the rows that drafts leave it.

    Its pass takes the same time whichever request gets the rows. A prompt's row that a draft took is computed in a
    later step, so that is the price of a draft's row, rather than the time that one row more adds to a pass.

    Args:
        prices: of passes and drafts.
        batch: the step, with the rows of prompts as they are without drafts.

    Attributes:
        alone: the prices of other steps.
    """

    def __init__(self, prices: Prices, batch: BatchStats) -> None:
        self.alone, self._rows = prices, batch.num_decodes + batch.num_prefill_rows
        self._row = prices.prompt_row()
        decodes = prices.target(max(1, batch.num_decodes), batch.mean_context)
        self._seconds = decodes + batch.num_prefill_rows * self._row
        self.draft_level, self.reading, self.prompt_row = prices.draft_level, prices.reading, prices.prompt_row

    def target(self, rows: float, context: float = 0.0) -> float:
        """See `Prices`; rows beyond those of the step are a prompt's in a later one."""
        if rows < self._rows:
            return self.alone.target(rows, context)
        return self._seconds + (rows - self._rows) * self._row

    def observe(self, step: object) -> None:
        """Do nothing: the prices of all steps learn."""


def prices_in(batch: BatchStats, prices: Prices) -> Prices:
    """`prices`, as they are in this step."""
    return FullStep(prices, batch) if batch.is_full and batch.num_prefill_rows else prices


def prices_alone(prices: Prices) -> Prices:
    """`prices`, as they are in steps without prompts."""
    return prices.alone if isinstance(prices, FullStep) else prices
