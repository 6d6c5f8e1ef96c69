"""Accepted draft tokens of simulated requests: by a constant rate, or from a recorded trace.

Rates by position are not valid for other draft lengths, since with longer drafts rounds start at harder positions. A
trace records, for every position of real answers, how far a draft from there would be accepted; it is valid for any
length and policy. `paceline advise --export` writes traces. Not for measuring acceptance (`evaluation/advise/`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from paceline.errors import InvalidParameter

Offer = tuple[int, Sequence[float]]
"""(number of tokens drafted at a position, conditional acceptance probability of each)."""


class Acceptance(Protocol):
    """Draws the outcome of a draft."""

    def draft(self, request: int, num_said: int, budget: int, rng: np.random.Generator) -> tuple[int, int]:
        """(tokens drafted, tokens accepted) for a request with `num_said` output tokens and a draft budget."""
        ...


@dataclass(frozen=True, slots=True)
class SameRate:
    """Drafts the whole budget; every token is accepted with probability `rate`, given that those before it were."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise InvalidParameter("acceptance_rate", f"{self.rate}", "give a probability")

    def draft(self, request: int, num_said: int, budget: int, rng: np.random.Generator) -> tuple[int, int]:
        """See `Acceptance`."""
        return budget, _run([self.rate] * budget, rng)


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded answers with an offer at every position after the first token; request i uses answer i modulo their
    number.

    Args:
        answers: offers of each answer, by position. A longer request continues at the beginning of its answer.

    Raises:
        InvalidParameter: no answer has a position.
    """

    answers: Sequence[Sequence[Offer]]

    def __post_init__(self) -> None:
        if not self.answers or not all(self.answers):
            raise InvalidParameter("trace", "an answer without a place", "record answers of two tokens and more")

    @classmethod
    def read(cls, path: Path, draft: str | None = None) -> "Trace":
        """From a file of `paceline advise --export`.

        Args:
            draft: name of the drafter to use; None takes the first in the file.

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
    """Number of tokens accepted before the first rejection; probabilities of 1 need no draw."""
    fell = rng.random(len(stands)) >= np.asarray(stands)
    return int(fell.argmax()) if fell.any() else len(stands)
