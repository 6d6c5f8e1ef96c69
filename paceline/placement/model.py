"""`PlacedModel`: a model for the planner: a profile with traffic and a deadline, without weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import InvalidParameter

NO_SLO = 1e9
"""Deadlines from this many seconds on count as none: every request is in time, and plans compare by mean latency."""


MAX_WEIGHT = 1e6
MAX_CV = 1000.0
"""Largest CV of gaps; beyond, gaps are too small to change a float time, and drawing a stream would not end."""


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """One of the models that share a cluster.

    Args:
        name: its name in requests; unique in a case.
        profile_type: key of its profile. Models of one type have equal latencies and sizes.
        rate: mean requests per second.
        cv: coefficient of variation of the gaps between arrivals; 1 is Poisson, larger is burstier.
        slo: largest latency of a request in seconds; `NO_SLO` for none.
        path: of its weights; None for planning only.
        speculative: configuration of its engines (`SpeculativeConfig.of`), for clusters started from the plan.
        prompt_tokens, output_tokens: mean tokens of requests that are generated token by token, with coefficient of
            variation `length_cv`.
        slo_first, slo_token: seconds from arrival to the first token, and per further token; infinite for none.
        weight: of its requests in the attainment. floor: attainment that a plan should reach for it with priority.

    Raises:
        InvalidParameter: a negative rate or cv, a deadline or weight that is not above 0, or a floor outside [0, 1].
    """

    name: str
    profile_type: str
    rate: float = 0.0
    cv: float = 1.0
    slo: float = NO_SLO
    path: str | None = None
    prompt_tokens: float = 1.0
    output_tokens: float = 1.0
    length_cv: float = 0.0
    slo_first: float = float("inf")
    slo_token: float = float("inf")
    weight: float = 1.0
    floor: float = 0.0
    speculative: str | Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if not 0 <= self.rate < float("inf"):
            raise InvalidParameter(
                "rate", f"{self.rate} for model {self.name!r}", "give requests per second, 0 or more"
            )
        if not 0 <= self.cv <= MAX_CV:
            problem = f"{self.cv} for model {self.name!r}"
            raise InvalidParameter("cv", problem, f"give 0 to {MAX_CV:g}; 1 is Poisson")
        for name in ("slo", "slo_first", "slo_token"):
            if not getattr(self, name) > 0:
                problem = f"{getattr(self, name)} s for model {self.name!r}"
                raise InvalidParameter(name, problem, "give seconds above 0, or leave it out")
        for name, least in (("prompt_tokens", 1), ("output_tokens", 1), ("length_cv", 0)):
            if not least <= getattr(self, name) < 2**31:
                problem = f"{getattr(self, name)} for model {self.name!r}"
                raise InvalidParameter(name, problem, f"give {least} or more")

        if not 0 < self.weight <= MAX_WEIGHT:
            problem = f"{self.weight} for model {self.name!r}"
            raise InvalidParameter("weight", problem, f"give a number above 0, up to {MAX_WEIGHT:g}")
        if not 0 <= self.floor <= 1:
            raise InvalidParameter("floor", f"{self.floor} for model {self.name!r}", "give an attainment from 0 to 1")

    @property
    def has_slo(self) -> bool:
        """Whether its requests have a deadline."""
        return self.slo < NO_SLO or min(self.slo_first, self.slo_token) < float("inf")
