"""Cost of a round of drafting and verification, and the speed-up that follows from it.

A round is one step of an engine: every request drafts, one pass of the target verifies all drafts. Its cost is

    t(rows, context) + sum over levels of d(level, requests) + overhead of the step,

with rows = prefill rows + requests + drafted nodes. Length policies, reports, simulators and the advisor all use this
module, each with its own prices: learned, fixed or measured. Not for learning prices (`speculation/prices.py`), nor for
estimating acceptance (`acceptance.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from paceline.theory.checks import check_positive


class RoundPrices(Protocol):
    """Costs in seconds or proportional to them; implemented by `speculation.prices.Prices`."""

    def target(self, rows: float, context: float = 0.0) -> float:
        """Cost of a target pass over `rows` rows with a mean of `context` tokens in the cache before each."""
        ...

    def draft_level(self, level: int, num_requests: int, context: float = 0.0) -> float:
        """Cost of level number `level` (from 0) of drafts that `num_requests` requests make together."""
        ...


@dataclass(frozen=True, slots=True)
class Round:
    """The work of one step.

    Attributes:
        num_requests: requests that decode.
        num_nodes: drafted nodes of all of them together.
        levels: draft steps, shared by all requests: the depth of the deepest draft.
        context: tokens in the cache before a row, on average.
        num_prefill_rows: prefill rows in the same pass.
    """

    num_requests: int = 1
    num_nodes: float = 0
    levels: float = 0
    context: float = 0
    num_prefill_rows: float = 0

    @property
    def num_rows(self) -> float:
        """Rows of the target's pass."""
        return self.num_prefill_rows + self.num_requests + self.num_nodes


def draft_seconds(one: Round, prices: RoundPrices) -> float:
    """Seconds of all draft steps; a fractional number of levels (a mean depth) is interpolated."""
    whole = int(one.levels)
    seconds = sum([prices.draft_level(level, one.num_requests, one.context) for level in range(whole)])
    if one.levels > whole:
        seconds += (one.levels - whole) * prices.draft_level(whole, one.num_requests, one.context)
    return seconds


def round_seconds(one: Round, prices: RoundPrices, overhead: float = 0) -> float:
    """Seconds of a round.

    Args:
        overhead: seconds of a step besides drafts and pass: scheduling, verification, text.
    """
    return prices.target(one.num_rows, one.context) + draft_seconds(one, prices) + overhead


def speedup(tokens_per_round: float, one: Round, prices: RoundPrices) -> float:
    """Tokens per second with rounds like `one` over tokens per second of plain decoding by the same requests.

    Args:
        tokens_per_round: expected tokens of a request per round, the target's own included.
    """
    check_positive("tokens_per_round", tokens_per_round)
    bare = Round(one.num_requests, context=one.context, num_prefill_rows=one.num_prefill_rows)
    return tokens_per_round * round_seconds(bare, prices) / round_seconds(one, prices)


@dataclass(frozen=True, slots=True)
class PlainPrices:
    """Prices from a curve t(rows, context) and one price for every draft step.

    Attributes:
        curve: seconds of a target pass.
        step: seconds of a draft step.
    """

    curve: Callable[[float, float], float]
    step: float = 0.0

    def target(self, rows: float, context: float = 0.0) -> float:
        """See `RoundPrices`."""
        return self.curve(rows, context)

    def draft_level(self, level: int, num_requests: int, context: float = 0.0) -> float:
        """See `RoundPrices`."""
        return self.step
