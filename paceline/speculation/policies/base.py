"""`LengthPolicy`: the interface of length policies.

A policy sees counters (`records.py`) and draft laws, never the token just drawn: if keeping a token depended on which
token was drawn, the output would no longer follow the target's law.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np

from paceline.errors import InvalidParameter
from paceline.speculation.outcome import StepOutcome
from paceline.speculation.records import BatchStats, DraftStats, PrefixStats


class DraftLaw(Protocol):
    """What a policy may read of a draft law: its positive probabilities. `paceline.sampling.Law` satisfies it."""

    @property
    def probs(self) -> np.ndarray:
        """[k] positive probabilities."""
        ...


class LengthPolicy:
    """Decides draft lengths. A subclass must implement `budgets`; the other methods have defaults.

    Attributes:
        asks_beliefs: for greedy requests the policy gets the draft's law at temperature 1 instead of the warped law,
            which is one-hot and carries no confidence.
        asks_laws: the policy reads more of such a law than its largest probability.
    """

    asks_beliefs: ClassVar[bool] = False
    asks_laws: ClassVar[bool] = False

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """Nodes to draft in this step for each decoding request; 0 for none. The step may reduce them."""
        raise NotImplementedError

    def trim(
        self, chances: Sequence[Sequence[float]], requests: Sequence[DraftStats], batch: BatchStats
    ) -> Sequence[int]:
        """Number of leading nodes to verify of each proposal that has acceptance probabilities; by default all.

        Called after the drafter. Such proposals are chosen deterministically, not drawn, so the number may depend on
        them.

        Args:
            chances: per proposal, the acceptance probability of each node, descending.
            requests: the request of each proposal.
            batch: the step; rows of other drafts count as prefill rows.
        """
        return [len(one) for one in chances]

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """Whether to draw another token, given the laws of the tokens drawn so far (at least one)."""
        return True

    def reads_along(self, request: DraftStats, batch: BatchStats) -> bool:
        """Whether the drafter should compute the text of a request that is still prefilled (`ReadingDrafter`).

        Args:
            request: of the prefill.
            batch: the step that computes its chunk.
        """
        return True

    def observe(self, step: StepOutcome) -> None:
        """Learn from the counts and seconds of a step, never from its tokens."""


class Around(LengthPolicy):
    """A policy that asks another one in everything; subclasses differ in some of it.

    Attributes:
        inner: the other one.
    """

    def __init__(self, inner: LengthPolicy) -> None:
        self.inner = inner

    @property
    def asks_beliefs(self) -> bool:  # type: ignore[override]
        """See `LengthPolicy`."""
        return self.inner.asks_beliefs

    @property
    def asks_laws(self) -> bool:  # type: ignore[override]
        """See `LengthPolicy`."""
        return self.inner.asks_laws

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """See `LengthPolicy`."""
        return self.inner.budgets(requests, batch)

    def trim(
        self, chances: Sequence[Sequence[float]], requests: Sequence[DraftStats], batch: BatchStats
    ) -> Sequence[int]:
        """See `LengthPolicy`."""
        return self.inner.trim(chances, requests, batch)

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """See `LengthPolicy`."""
        return self.inner.keep_drafting(prefix, draft_laws)

    def reads_along(self, request: DraftStats, batch: BatchStats) -> bool:
        """See `LengthPolicy`."""
        return self.inner.reads_along(request, batch)

    def observe(self, step: StepOutcome) -> None:
        """See `LengthPolicy`."""
        self.inner.observe(step)


def check_least(field: str, value: int, least: int) -> None:
    """Raise InvalidParameter for a `value` below `least`."""
    if value < least:
        raise InvalidParameter(field, f"{value} is less than {least}", f"give a whole number of at least {least}")


def check_share(field: str, value: float) -> None:
    """Raise InvalidParameter for a `value` outside [0, 1]."""
    if not 0 <= value <= 1:
        raise InvalidParameter(field, f"{value} is not in [0, 1]", "give a probability")


def one_more_pays(draft_laws: Sequence[DraftLaw], acceptance: float, spent: float, with_one_more: float) -> bool:
    """Whether one more token raises tokens per second: (E + s a) / (T + c) > E / T, that is s a T > c E.

    s, the estimated probability that all tokens so far are accepted, is the product of the draft's largest
    probabilities; E = 1 + s_1 + s_1 s_2 + ... is the expected number of tokens. Only laws are read, so the output keeps
    the target's law.

    Args:
        acceptance: a, the request's acceptance rate.
        spent, with_one_more: T and T + c, the step's cost with these tokens and with one more, in any unit.
    """
    survival, expected = 1.0, 1.0
    for law in draft_laws:
        survival *= float(law.probs.max())
        expected += survival
    return survival * acceptance * spent > (with_one_more - spent) * expected
