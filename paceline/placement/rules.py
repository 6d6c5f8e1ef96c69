"""`ControllerRules`: what serving adds to profiles, and which batches it forms. They are part of a case."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InvalidParameter

OVERHEAD = 0.011
"""Seconds between a request's last stage, or its last token, and its answer."""
STAGE_OVERHEAD = 0.009
"""Part of a stage's latency that each stage of its pipeline adds; both are the constants of AlpaServe's simulator."""


@dataclass(frozen=True, slots=True)
class ControllerRules:
    """What serving adds to a profile's latencies (AlpaServe, arXiv 2302.11665, and its published code).

    Args:
        overhead: seconds between a request's last stage (or its last token) and its answer.
        stage_overhead: each stage takes 1 + `stage_overhead` x (number of stages) times its profiled latency.
        batch_sizes: sizes a batch may have, rising from 1, where they were profiled; (1,) for no batches, None for
            every profiled size.

    Raises:
        InvalidParameter: a negative overhead, or sizes that do not rise from 1.
    """

    overhead: float = OVERHEAD
    stage_overhead: float = STAGE_OVERHEAD
    batch_sizes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for field in ("overhead", "stage_overhead"):
            if not 0 <= getattr(self, field) < float("inf"):
                raise InvalidParameter(field, f"{getattr(self, field)} is not 0 or more", "give 0 to switch it off")
        sizes = self.batch_sizes
        if sizes is not None and (list(sizes) != sorted(set(sizes)) or not sizes or sizes[0] != 1):
            raise InvalidParameter("batch_sizes", f"{sizes} does not rise from 1", "use e.g. 1, 2, 4, 8, 16")

    def stage_seconds(self, latency: Sequence[float]) -> list[float]:
        """Busy seconds of each stage, from the profiled ones."""
        return [seconds * (1 + self.stage_overhead * len(latency)) for seconds in latency]
