"""What a length policy is, and what it may see.

A policy is told counters (`stats.py`) and draft laws, never the token just drawn: a draft that drops a token because of
what it is no longer follows the target's law.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from paceline.errors import InvalidParameter
from paceline.scheduling.stats import BatchStats, DraftStats, PrefixStats


class DraftLaw(Protocol):
    """What a policy may read of a draft law: its positive probabilities (`paceline.sampling.Law` fits)."""

    @property
    def probs(self) -> np.ndarray: ...


class LengthPolicy(Protocol):
    """Decides how long drafts are.

    A policy with a true attribute `asks_beliefs` is shown, for greedy requests, the draft's law at temperature 1 in
    place of the warped one, which is a point. One with a number `promise` goes by a request's own past alone, and asks
    for so many nodes at most: sampled requests are granted what it says whatever the load, so a seed says the same.
    """

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """Nodes to draft in this step for each of the batch's requests that follow this policy, 0 for none.

        The step may cut them.
        """
        ...

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """Asked before each further token is drawn, with the laws of the tokens drawn so far (never empty)."""
        ...


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What a step that only decoded brought and took.

    Attributes:
        num_decodes: requests in it.
        num_draft_tokens: drafted tokens verified.
        num_tokens: tokens committed.
        seconds: of drafting, the pass and everything around them.
    """

    num_decodes: int
    num_draft_tokens: int
    num_tokens: int
    seconds: float


@runtime_checkable
class StepObserver(Protocol):
    """A length policy that learns from whole steps. Told counts and seconds, never tokens."""

    def observe_step(self, step: StepRecord) -> None:
        """Called after every step that only decoded."""
        ...


def check_least(field: str, value: int, least: int) -> None:
    """Refuse a `value` below `least`."""
    if value < least:
        raise InvalidParameter(field, f"{value} is less than {least}", f"give a whole number of at least {least}")


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
