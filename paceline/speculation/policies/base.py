"""What a length policy is, and what it may see.

A policy is told counters (`records.py`) and draft laws, never the token just drawn: a draft that drops a token because
of what it is no longer follows the target's law.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np

from paceline.errors import InvalidParameter
from paceline.speculation.outcome import StepOutcome
from paceline.speculation.records import BatchStats, DraftStats, PrefixStats


class DraftLaw(Protocol):
    """What a policy may read of a draft law: its positive probabilities (`paceline.sampling.Law` fits)."""

    @property
    def probs(self) -> np.ndarray:
        """[k] positive probabilities."""
        ...


class LengthPolicy:
    """Decides how long drafts are. A subclass must say `budgets`; the rest has defaults.

    Attributes:
        asks_beliefs: for greedy requests it is shown the draft's law at temperature 1 in place of the warped one, which
            is a point and says nothing of how sure the draft is.
        asks_laws: it reads more of such a law than its largest probability.
    """

    asks_beliefs: ClassVar[bool] = False
    asks_laws: ClassVar[bool] = False

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """Nodes to draft in this step for each of the batch's decoding requests, 0 for none. The step may cut them."""
        raise NotImplementedError

    def trim(
        self, chances: Sequence[Sequence[float]], requests: Sequence[DraftStats], batch: BatchStats
    ) -> Sequence[int]:
        """Nodes to verify of each proposal that says how likely its nodes are, the first that many; all by default.

        Asked after the drafter; every such proposal is chosen and none drawn, so the choice may rest on what it says.

        Args:
            chances: per proposal, by node, descending.
            requests: whose proposals they are.
            batch: the step; rows of drafts that say nothing count as rows of prompts.
        """
        return [len(one) for one in chances]

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """Asked before each further token is drawn, with the laws of the tokens drawn so far (never empty)."""
        return True

    def observe(self, step: StepOutcome) -> None:
        """Learn from a step: counts and seconds, never tokens."""


def check_least(field: str, value: int, least: int) -> None:
    """Refuse a `value` below `least`."""
    if value < least:
        raise InvalidParameter(field, f"{value} is less than {least}", f"give a whole number of at least {least}")


def check_share(field: str, value: float) -> None:
    """Refuse a `value` outside [0, 1]."""
    if not 0 <= value <= 1:
        raise InvalidParameter(field, f"{value} is not in [0, 1]", "give a probability")


def one_more_pays(draft_laws: Sequence[DraftLaw], acceptance: float, spent: float, with_one_more: float) -> bool:
    """Whether one more token raises tokens per second: (E + s a) / (T + c) > E / T, that is s a T > c E.

    s, the chance that all tokens so far stand, is the product of the draft's largest probabilities; E = 1 + s_1 +
    s_1 s_2 + ... the tokens expected so far. Only laws are read, so the text keeps its law.

    Args:
        acceptance: a, the request's rate.
        spent, with_one_more: T and T + c, the step's price with these tokens and with one more, in any unit.
    """
    survival, expected = 1.0, 1.0
    for law in draft_laws:
        survival *= float(law.probs.max())
        expected += survival
    return survival * acceptance * spent > (with_one_more - spent) * expected
