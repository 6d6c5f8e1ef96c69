"""`Goodput`: the length with the most expected tokens per second, by what a pass costs and what is accepted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.scheduling.length.base import DraftLaw, check_least
from paceline.scheduling.stats import BatchStats, DraftStats, PrefixStats

_FEW = 4  # up to about so many requests another row is nearly free
_TIE = 1e-12  # a longer draft must win by more than float noise


def _free(_num_requests: int, _context: float) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Goodput:
    """The length with the most expected tokens per second, 0 when drafts do not pay (Liu et al. 2024, SmartSpec).

    Attributes:
        pass_seconds: t(M, context), seconds of a target pass over M rows behind so many tokens, e.g. a `CostProfile`.
        draft_seconds: seconds of one draft step by the number of requests that draft and their context; free for prompt
            lookup.
        max_length: longest draft considered.
        explore_every: a request whose drafts are switched off tries one token after so many steps, because without
            drafts its acceptance rate would never change again. Among many requests each tries less often, since there
            a row that is refused costs its full share of the pass, and others have news as well.

    Every decoding request is taken to draft alike, at the rate of the request that is asked about.
    """

    pass_seconds: Callable[[int, float], float]
    draft_seconds: Callable[[int, float], float] = _free
    max_length: int = 8
    explore_every: int = 32
    _latest: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_least("max_length", self.max_length, 0)
        check_least("explore_every", self.explore_every, 1)

    def budget(self, request: DraftStats, batch: BatchStats) -> int:
        """argmax over k of E(alpha, k) / (k d + t(rows with k drafts each)), the smallest k on ties."""
        alpha = request.rate.value
        best, best_goodput, expected, survival = 0, 0.0, 0.0, 1.0
        for length, seconds in enumerate(self._step_seconds(batch)):
            expected += survival
            survival *= alpha
            goodput = expected / seconds
            if goodput > best_goodput:
                best, best_goodput = length, goodput * (1 + _TIE)
        patience = self.explore_every * max(1, batch.num_decodes // _FEW)
        must_explore = self.max_length > 0 and request.steps_since_draft >= patience
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

    def _step_seconds(self, batch: BatchStats) -> list[float]:
        """`_seconds` of each length, computed once per step: every request of a step is told the same batch."""
        if not self._latest or self._latest[0] is not batch:
            seconds = [self._seconds(batch, length) for length in range(self.max_length + 1)]
            self._latest[:] = batch, seconds
        return self._latest[1]

    def _seconds(self, batch: BatchStats, num_draft_tokens: int) -> float:
        size = max(1, batch.num_decodes)
        rows = batch.num_prefill_rows + size * (num_draft_tokens + 1)
        context = batch.mean_context
        return num_draft_tokens * self.draft_seconds(size, context) + self.pass_seconds(rows, context)
