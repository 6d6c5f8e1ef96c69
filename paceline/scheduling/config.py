"""`SchedulerConfig`: a scheduler's limits and their defaults.

Not for limits of one request (`paceline.types.SamplingParams`) or for the cache's size (`pages.PagePool`).
"""

from dataclasses import dataclass
from math import inf

from paceline.config import SchedulerName
from paceline.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How a scheduler fills a step.

    Attributes:
        policy: name of the scheduling policy, a module of `policies/`.
        max_num_batched_tokens: rows of a step (the token budget tau of Sarathi-Serve); it bounds how long prefills
            delay the decodes in the same step. Only ``orca`` exceeds it, whose steps are bounded by ``max_num_seqs``:
            with a prompt that does not fit, or with more decodes than rows.
        max_num_seqs: requests that may hold cache pages at once.
        max_model_len: most tokens of one request, prompt and output together.
        prefix_caching: reuse the cached pages of equal prefixes.
        tile: tile width in rows; ``sarathi`` aligns its batches to it.
        balanced_context: tokens before a row with which its attention takes as long as its products with weights; with
            ``stall_free``, chunks beside decodes are shortened as their attention grows. Infinite for chunks of one
            size.
        num_lookahead_slots: slots after a decoding request's last token that get pages while some are free, for models
            that start the next pass ahead of its request.

    Raises:
        InvalidParameter: a number is below 1, `balanced_context` is not above 0, or a tile is wider than the whole
            budget.
    """

    policy: SchedulerName = "stall_free"
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 64
    max_model_len: int = 2048
    prefix_caching: bool = True
    tile: int = 16
    num_lookahead_slots: int = 0
    balanced_context: float = inf

    def rows_of(self, context: int) -> float:
        """Rows that a token of a chunk counts as beside decodes, after `context` tokens: itself, and its attention."""
        return 1 + context / self.balanced_context

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "tile"):
            value = getattr(self, name)
            if value < 1:
                raise InvalidParameter(name, f"{value!r} is less than 1", "give a whole number of at least 1")
        if not self.balanced_context > 0:
            remedy = "leave it out for chunks of one size"
            raise InvalidParameter("balanced_context", f"{self.balanced_context} is not above 0", remedy)
        if self.tile > self.max_num_batched_tokens:
            problem = f"{self.tile} rows are more than max_num_batched_tokens={self.max_num_batched_tokens}"
            raise InvalidParameter("tile", problem, "lower the tile or raise max_num_batched_tokens")
