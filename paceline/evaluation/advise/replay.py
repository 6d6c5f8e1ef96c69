"""Acceptance by replay: a text that is there already, the rounds it would have taken, and their expectation.

A draft model reads the text once: greedy drafts stand while its own choice is the text; a drawn draft stands, given the
text, with min(1, q(x)/p(x)), and the expected rounds follow by dynamic programming over the text. Drafters that must be
asked for real, round after round (lookups, heads, trees, hybrids), are in `walk.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.engine.score import Scores
from paceline.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class Text:
    """One answer of a log.

    Attributes:
        prompt: token ids.
        output: token ids, the first of which the prefill brings.
        is_cut: it ended by its length, so that an engine would have drafted no further.
        family: of its prompt.
        seed: that it was sampled with; None where nobody knows.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    is_cut: bool = True
    family: str = "all"
    seed: int | None = None

    @property
    def num_decoded(self) -> int:
        """Tokens after the first."""
        return max(0, len(self.output) - 1)

    @property
    def mean_context(self) -> float:
        """Tokens in the cache before a decoded row, on average."""
        return len(self.prompt) + self.num_decoded / 2


@dataclass(slots=True)
class Rounds:
    """What a drafter would have made of one text.

    Attributes:
        tokens: decoded, that is after the first.
        sizes: a number of drafted tokens to how many rounds had that many (expected, where drafts are drawn).
        tested, accepted: by place in the draft.
        draft_seconds: that proposals took, where they were really made.
        certain: (drafted tokens, those that stood) of the rounds that surely happen, in order.
    """

    tokens: int
    sizes: dict[int, float] = field(default_factory=dict)
    tested: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    draft_seconds: float = 0.0
    certain: list[tuple[int, int]] = field(default_factory=list)

    @property
    def count(self) -> float:
        """Rounds, that is target passes after the first token."""
        return sum(self.sizes.values())

    def add(self, size: int, kept: int, is_refused: bool, weight: float = 1.0) -> None:
        """A round with `size` drafted tokens of which `kept` stood, and whether the next one was refused."""
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
        """(drafted tokens, those that stood) of each round; where rounds are only expected, as many mean ones."""
        if len(self.certain) == self.count:
            return list(self.certain)
        number = max(1, round(self.count))
        size = sum(size * weight for size, weight in self.sizes.items()) / self.count
        return [(size, self.tokens / self.count - 1)] * number


def standing(target: Scores, draft: Scores, is_greedy: bool) -> np.ndarray:
    """[n] the chance that a drafted token stands at each place of a text, given the text.

    Args:
        target, draft: scores of the same tokens under the request's settings.
        is_greedy: drafts are the draft model's own choice, and so is the text the target's.
    """
    if is_greedy:
        return (draft.ranks == 0).astype(np.float64)
    with np.errstate(over="ignore"):
        return np.minimum(1.0, np.exp(draft.logprobs - target.logprobs))


def replay_chain(stands: np.ndarray, most: int, is_cut: bool = True) -> Rounds:
    """The expected rounds of one text when chains of `most` tokens are drafted at every round.

    Args:
        stands: [tokens after the first] as `standing` gives them, the first token's left out.
        most: tokens of a draft.
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
"""(tokens of a draft, the chance of each to stand when those before it do; shorter where the text ends)."""


def expected_rounds(count: int, offer: Callable[[int], Offer]) -> Rounds:
    """The expected rounds over `count` decoded tokens when `offer` tells the draft at each place.

    A place is reached with chance w(j), and w(j + a + 1) += w(j) P(a tokens stand at j): dynamic programming forwards.
    Offers are asked only for places that are reached.
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
    """[size + 1] the chance that exactly 0, 1, ... of the first `size` tokens stand."""
    chances, survival = [], 1.0
    for chance in stands[:size]:
        chances.append(survival * (1.0 - float(chance)))
        survival *= float(chance)
    return [*chances, survival]
