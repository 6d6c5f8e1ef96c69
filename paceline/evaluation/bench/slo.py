"""Service level objectives on latency, and how many answers meet them (goodput: DistServe, Zhong et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InvalidParameter
from paceline.evaluation.bench.arms import Answer

_UNITS = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency limits of an answer; None for no limit.

    Attributes:
        ttft: seconds to the first token.
        tpot: mean seconds per token after it.
    """

    ttft: float | None = None
    tpot: float | None = None

    @classmethod
    def of(cls, text: str) -> "Slo":
        """Parse ``ttft=1s,tpot=80ms``, either or both. Raises InvalidParameter for anything else."""
        times: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = (each.strip() for each in part.partition("="))
            unit = next((unit for unit in _UNITS if value.endswith(unit)), "")
            try:
                seconds = float(value.removesuffix(unit)) * _UNITS[unit]
            except (ValueError, KeyError):
                seconds = 0.0
            if name not in ("ttft", "tpot") or name in times or not 0 < seconds < float("inf"):
                raise InvalidParameter("slo", f"{part!r} cannot be read", "write e.g. ttft=1s,tpot=80ms")
            times[name] = seconds
        return cls(**times)

    def keeps(self, answer: Answer) -> bool:
        """Whether an answer meets the limits."""
        is_soon = self.ttft is None or answer.first_token_seconds <= self.ttft
        return is_soon and (self.tpot is None or answer.seconds_per_token <= self.tpot)

    def share(self, answers: Sequence[Answer]) -> float:
        """Fraction of the answers that meet the limits."""
        return sum(map(self.keeps, answers)) / len(answers)
