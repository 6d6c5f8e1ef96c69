"""`GuardedPolicy`: wraps a length policy so that its errors end no request; after the first error nothing is drafted.

Not for policies (`speculation/policies/`), nor for drafters' errors (`drafting.py`).
"""

from collections.abc import Callable, Sequence
from operator import index
from typing import TypeVar

from paceline.errors import PolicyWarning, error_text, warn_safely
from paceline.speculation import BatchStats, DraftStats, LengthPolicy, PrefixStats, StepOutcome
from paceline.speculation.policies import Around, DraftLaw

Answer = TypeVar("Answer")


class GuardedPolicy(Around):
    """Delegates to `inner` until it raises or returns an invalid value; from then on every budget is 0.

    Attributes:
        inner: the policy.
        error: the error after which `inner` is no longer called; None before.
    """

    def __init__(self, inner: LengthPolicy) -> None:
        super().__init__(inner)
        self.error: Exception | None = None

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """See `LengthPolicy`."""
        return self._asked(lambda: _checked(self.inner.budgets(requests, batch), len(requests)), [0] * len(requests))

    def trim(
        self, chances: Sequence[Sequence[float]], requests: Sequence[DraftStats], batch: BatchStats
    ) -> Sequence[int]:
        """See `LengthPolicy`."""
        nothing = [0] * len(chances)
        return self._asked(lambda: _checked(self.inner.trim(chances, requests, batch), len(chances)), nothing)

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """See `LengthPolicy`."""
        return self._asked(lambda: self.inner.keep_drafting(prefix, draft_laws), False)

    def reads_along(self, request: DraftStats, batch: BatchStats) -> bool:
        """See `LengthPolicy`."""
        return self._asked(lambda: self.inner.reads_along(request, batch), False)

    def observe(self, step: StepOutcome) -> None:
        """See `LengthPolicy`."""
        self._asked(lambda: self.inner.observe(step), None)

    def _asked(self, ask: Callable[[], Answer], otherwise: Answer) -> Answer:
        if self.error is not None:
            return otherwise
        try:
            return ask()
        except Exception as error:
            self.error = error
            name = type(self.inner).__name__
            warn_safely(
                f"length policy {name!r} failed, so nothing is drafted any more: {error_text(error)}", PolicyWarning
            )
            return otherwise


def _checked(budgets: Sequence[int], num_requests: int) -> list[int]:
    """`budgets` as ints. Raises ValueError or TypeError unless there is one of at least 0 for each request."""
    whole = [index(budget) for budget in budgets]
    if len(whole) != num_requests or min(whole, default=0) < 0:
        raise ValueError(f"{whole} are no budgets of {num_requests} requests")
    return whole
