"""`SchedulerConfig`: the numbers a scheduler works under, each default written once.

Not for limits of one request (`paceline.types.SamplingParams`) or for the cache's size (`pages.PagePool`).
"""

from dataclasses import dataclass

from paceline.config import SchedulerName
from paceline.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How a scheduler fills a step.

    Attributes:
        policy: which file of `policies/` decides.
        max_num_batched_tokens: rows a step may have (Sarathi-Serve's token budget tau): it bounds how long decodes wait
            for the prefills beside them. Only ``orca`` exceeds it, with a prompt that does not fit beside the decodes.
        max_num_seqs: requests that may hold cache pages at once.
        max_model_len: most tokens of one request, prompt and output together.
        prefix_caching: reuse the cached pages of equal prefixes.
        tile: rows at which a pass gets a step slower; ``sarathi`` aligns its batches to it.
        num_lookahead_slots: slots after a decoding request's last token that get a page while pages are free, for
            models that begin the next pass before it is asked for.

    Raises:
        InvalidParameter: a number is below 1, or a tile is wider than the whole budget.
    """

    policy: SchedulerName = "stall_free"
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 64
    max_model_len: int = 2048
    prefix_caching: bool = True
    tile: int = 16
    num_lookahead_slots: int = 0

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "tile"):
            value = getattr(self, name)
            if value < 1:
                raise InvalidParameter(name, f"{value!r} is less than 1", "give a whole number of at least 1")
        if self.tile > self.max_num_batched_tokens:
            problem = f"{self.tile} rows are more than max_num_batched_tokens={self.max_num_batched_tokens}"
            raise InvalidParameter("tile", problem, "lower the tile or raise max_num_batched_tokens")
