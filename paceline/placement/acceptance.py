"""How many drafted tokens stand in a simulated request: by one rate for all, or as a recorded trace tells.

Rates by place do not travel between lengths, since longer drafts make rounds begin at harder places. A trace tells, for
every place of real answers, how far a draft from there would have gone; it serves any length and any policy. Traces are
what `paceline advise --export` writes. Not for measuring acceptance (`evaluation/advise/`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from paceline.errors import InvalidParameter

Offer = tuple[int, Sequence[float]]
"""(tokens that would be drafted at a place, the chance of each to stand when those before it do)."""


class Acceptance(Protocol):
    """Decides what becomes of a draft."""

    def draft(self, request: int, num_said: int, budget: int, rng: np.random.Generator) -> tuple[int, int]:
        """(tokens drafted, tokens that stand) for a request that has said so many tokens and may draft `budget`."""
        ...


@dataclass(frozen=True, slots=True)
class SameRate:
    """Every drafted token stands with the chance `rate` when those before it do; as many are drafted as may be."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise InvalidParameter("acceptance_rate", f"{self.rate}", "give a probability")

    def draft(self, request: int, num_said: int, budget: int, rng: np.random.Generator) -> tuple[int, int]:
        """See `Acceptance`."""
        return budget, _run([self.rate] * budget, rng)


@dataclass(frozen=True, slots=True)
class Trace:
    """Answers with an offer at every place after the first token; requests take them in turns.

    Args:
        answers: offers of each answer, by place. A request that says more goes on from the beginning of its answer.

    Raises:
        InvalidParameter: there is no answer with a place.
    """

    answers: Sequence[Sequence[Offer]]

    def __post_init__(self) -> None:
        if not self.answers or not all(self.answers):
            raise InvalidParameter("trace", "an answer without a place", "record answers of two tokens and more")

    @classmethod
    def read(cls, path: Path, draft: str | None = None) -> "Trace":
        """From a file of `paceline advise --export`.

        Args:
            draft: of several drafters, the one to take; the first when left out.

        Raises:
            InvalidParameter: the file cannot be read, or has no trace of that drafter.
        """
        try:
            profiles = json.loads(path.read_text(encoding="utf-8"))["profiles"]
            traces = {str(one["draft"]): one["trace"] for one in profiles if one.get("trace")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"{path} cannot be read ({error!r})"
            raise InvalidParameter("trace", problem, "write one with paceline advise --export FILE") from None
        name = draft if draft is not None else next(iter(traces), "")
        if name not in traces:
            raise InvalidParameter("trace", f"{path} has no trace of {name!r}", f"it has {', '.join(traces) or 'none'}")
        return cls([[(int(size), stands) for size, stands in answer] for answer in traces[name] if answer])

    def draft(self, request: int, num_said: int, budget: int, rng: np.random.Generator) -> tuple[int, int]:
        """See `Acceptance`."""
        answer = self.answers[request % len(self.answers)]
        size, stands = answer[(num_said - 1) % len(answer)]
        size = min(size, budget)
        return size, _run(stands[:size], rng)


def _run(stands: Sequence[float], rng: np.random.Generator) -> int:
    """How many tokens stand before the first that falls; a chance of 1 needs no luck."""
    fell = rng.random(len(stands)) >= np.asarray(stands)
    return int(fell.argmax()) if fell.any() else len(stands)
