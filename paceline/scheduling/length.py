"""How many tokens to draft: speculation-length policies.

A policy is a pure function of counters (`stats.py`) and draft laws. It never sees the token just drawn: a draft that
drops a token because of what it is no longer follows the target's law. Not the place for fitting drafts into a step
(`step.py`) or for measuring costs (`cost.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.errors import InvalidParameter
from paceline.scheduling.stats import BatchStats, DraftStats, PrefixStats

_TIE = 1e-12  # a longer draft must win by more than float noise


class DraftLaw(Protocol):
    """What a policy may read of a draft law: its positive probabilities (`paceline.sampling.Law` fits)."""

    @property
    def probs(self) -> np.ndarray: ...


class LengthPolicy(Protocol):
    """Decides how long drafts are."""

    def budget(self, request: DraftStats, batch: BatchStats) -> int:
        """Nodes to draft for one request in this step, 0 for none. The step may cut it."""
        ...

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """Asked before each further token is drawn, with the laws of the tokens drawn so far (never empty)."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always `num_draft_tokens`; 0 is plain decoding."""

    num_draft_tokens: int

    def __post_init__(self) -> None:
        _check_least("num_draft_tokens", self.num_draft_tokens, 0)

    def budget(self, request: DraftStats, batch: BatchStats) -> int:
        """The same number at every step."""
        return self.num_draft_tokens

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """Until the budget is spent."""
        return True


@dataclass(frozen=True, slots=True)
class Heuristic:
    """Two more after a draft that was accepted in full, one less after any other: the rule of assisted generation.

    The baseline that DISCO (Mamou et al. 2024) compares with. Never below `least`, so it cannot switch itself off; a
    draft that came back empty changes nothing.
    """

    start: int = 5
    least: int = 1
    most: int = 20

    def __post_init__(self) -> None:
        _check_least("least", self.least, 1)
        if not self.least <= self.start <= self.most:
            problem = f"{self.start} is not between least={self.least} and most={self.most}"
            raise InvalidParameter("start", problem, "order the three numbers")

    def budget(self, request: DraftStats, batch: BatchStats) -> int:
        """From the wanted length of the latest draft and its fate."""
        if request.last_budget is None:
            return self.start
        in_full = request.last_accepted_tokens == request.last_draft_tokens
        return min(self.most, max(self.least, request.last_budget + (2 if in_full else -1)))

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """Until the budget is spent."""
        return True


def _free(_batch_size: int) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Goodput:
    """The length with the most expected tokens per second, 0 when drafts do not pay (Liu et al. 2024, SmartSpec).

    Attributes:
        pass_seconds: t(M), seconds of a target pass over M rows, e.g. a `CostProfile`.
        draft_seconds: seconds of one draft step by the number of requests that draft; free for prompt lookup.
        max_length: longest draft considered.
        explore_every: a request whose drafts are switched off tries one token after so many steps, because without
            drafts its acceptance rate would never change again.

    Every decoding request is taken to draft alike, at the rate of the request that is asked about.
    """

    pass_seconds: Callable[[int], float]
    draft_seconds: Callable[[int], float] = _free
    max_length: int = 8
    explore_every: int = 32

    def __post_init__(self) -> None:
        _check_least("max_length", self.max_length, 0)
        _check_least("explore_every", self.explore_every, 1)

    def budget(self, request: DraftStats, batch: BatchStats) -> int:
        """argmax over k of E(alpha, k) / (k d + t(rows with k drafts each)), the smallest k on ties."""
        alpha = request.rate.value
        best, best_goodput, expected, survival = 0, 0.0, 0.0, 1.0
        for length in range(self.max_length + 1):
            expected += survival
            survival *= alpha
            goodput = expected / self._seconds(batch, length)
            if goodput > best_goodput * (1 + _TIE):
                best, best_goodput = length, goodput
        must_explore = self.max_length > 0 and request.steps_since_draft >= self.explore_every
        return max(best, 1) if must_explore else best

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """While one more token raises tokens per second: (E + s a) / (T + c) > E / T, that is s a T > c E.

        s, the chance that all tokens so far stand, is the product of the draft's largest probabilities; a is the
        request's acceptance rate, E = 1 + s_1 + s_1 s_2 + ... the tokens expected so far, T the seconds spent on them
        and c the seconds of one more. Only laws are read, so the text keeps its law.
        """
        survival, expected = 1.0, 1.0
        for law in draft_laws:
            survival *= float(law.probs.max())
            expected += survival
        drafted = len(draft_laws)
        spent, more = self._seconds(prefix.batch, drafted), self._seconds(prefix.batch, drafted + 1)
        return survival * prefix.request.rate.value * spent > (more - spent) * expected

    def _seconds(self, batch: BatchStats, num_draft_tokens: int) -> float:
        size = max(1, batch.num_decodes)
        rows = batch.num_prefill_rows + size * (num_draft_tokens + 1)
        return num_draft_tokens * self.draft_seconds(size) + self.pass_seconds(rows)


def _check_least(field: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidParameter(field, f"{value} is less than {least}", f"give a whole number of at least {least}")
