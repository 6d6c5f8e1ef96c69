"""Acceptance by replay: the expected rounds that an existing text would have taken with speculation.

A draft model is evaluated on the text once. Greedy drafts are accepted while its argmax is the text. A drawn draft is
accepted, given the text, with probability min(1, q(x)/p(x)), and the expected rounds follow by dynamic programming over
the text. Drafters that must propose round by round (lookups, heads, trees, hybrids) are in `walk.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.engine.score import TextScores
from paceline.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class Text:
    """One answer of a log.

    Attributes:
        prompt: token ids.
        output: token ids; the first one comes from the prefill.
        is_cut: it ended by its length, so an engine would not have drafted beyond its end.
        family: of its prompt.
        seed: that it was sampled with; None if unknown.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    is_cut: bool = True
    family: str = "all"
    seed: int | None = None

    @property
    def num_decoded(self) -> int:
        """Number of output tokens after the first."""
        return max(0, len(self.output) - 1)

    @property
    def mean_context(self) -> float:
        """Mean number of tokens in the cache before a decoded one."""
        return len(self.prompt) + self.num_decoded / 2


@dataclass(slots=True)
class Rounds:
    """The rounds that a drafter would have taken on one text; expected numbers where drafts are drawn.

    Attributes:
        tokens: number of output tokens after the first.
        sizes: number of drafted tokens to number of rounds with that many.
        tested, accepted: numbers of tokens by position in the draft.
        draft_seconds: of proposals, where they were timed.
        certain: (drafted, accepted tokens) of the rounds with probability 1, in order.
    """

    tokens: int
    sizes: dict[int, float] = field(default_factory=dict)
    tested: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    draft_seconds: float = 0.0
    certain: list[tuple[int, int]] = field(default_factory=list)

    @property
    def count(self) -> float:
        """Number of rounds, that is of target passes after the first token."""
        return sum(self.sizes.values())

    def add(self, size: int, kept: int, is_refused: bool, weight: float = 1.0) -> None:
        """Add a round of probability `weight`: `kept` of `size` drafted tokens accepted, the next perhaps rejected."""
        self.sizes[size] = self.sizes.get(size, 0.0) + weight
        if weight == 1.0:
            self.certain.append((size, kept))
        missing = max(kept + is_refused, len(self.tested)) - len(self.tested)
        self.tested += [0.0] * missing
        self.accepted += [0.0] * missing
        for level in range(kept + is_refused):
            self.tested[level] += weight
            self.accepted[level] += weight * (level < kept)

    def in_order(self) -> list[tuple[float, float]]:
        """(drafted, accepted tokens) of each round; for expected rounds, their mean, repeated `count` times."""
        if len(self.certain) == self.count:
            return list(self.certain)
        number = max(1, round(self.count))
        size = sum(size * weight for size, weight in self.sizes.items()) / self.count
        return [(size, self.tokens / self.count - 1)] * number


def standing(target: TextScores, draft: TextScores, is_greedy: bool) -> np.ndarray:
    """[n] the acceptance probability of a drafted token at each position of a text, given the text.

    Args:
        target, draft: scores of the same tokens under the request's settings.
        is_greedy: both the drafts and the text are greedy.
    """
    if is_greedy:
        return (draft.ranks == 0).astype(np.float64)
    with np.errstate(over="ignore"):
        return np.minimum(1.0, np.exp(draft.logprobs - target.logprobs))


def replay_chain(stands: np.ndarray, most: int, is_cut: bool = True) -> Rounds:
    """The expected rounds of one text when a chain of `most` tokens is drafted in every round.

    Args:
        stands: [tokens after the first] acceptance probabilities from `standing`, without the first token's.
        most: draft length.
        is_cut: as in `Text`.
    """
    if most < 1:
        raise InvalidParameter("num_draft_tokens", f"{most} is less than 1", "draft at least one token")
    count = len(stands)

    def offer(place: int) -> Offer:
        size = min(most, count - place - 1) if is_cut else most
        return size, stands[place : place + size]

    return expected_rounds(count, offer)


Offer = tuple[int, Sequence[float] | np.ndarray]
"""(length of a draft, acceptance probability of each token given those before it; fewer where the text ends)."""


def expected_rounds(count: int, offer: Callable[[int], Offer]) -> Rounds:
    """The expected rounds over `count` decoded tokens when `offer` gives the draft at each position.

    Position j begins a round with probability w(j), and w(j + a + 1) += w(j) P(a tokens accepted at j): forward dynamic
    programming. `offer` is called only for positions with w(j) > 0.
    """
    rounds, reached = Rounds(count), np.zeros(count + 1)
    reached[0] = 1.0 if count else 0.0
    for place in range(count):
        weight = float(reached[place])
        if weight == 0.0:
            continue
        size, stands = offer(place)
        for kept, chance in enumerate(_chances(stands, min(size, count - place))):
            if chance > 0:
                reached[min(count, place + kept + 1)] += weight * chance
                rounds.add(size, kept, kept < min(size, count - place), weight * chance)
    return rounds


def _chances(stands: Sequence[float] | np.ndarray, size: int) -> list[float]:
    """[size + 1] the probability that exactly 0, 1, ... of the first `size` tokens are accepted."""
    chances, survival = [], 1.0
    for chance in stands[:size]:
        chances.append(survival * (1.0 - float(chance)))
        survival *= float(chance)
    return [*chances, survival]
