"""Enumerate all outcomes of a randomised computation with their probabilities.

`EnumeratedRandomness` takes the place of the request's randomness. The computation is replayed once per outcome: each
replay follows a script of choices, takes the first possibility after its end, and the script is then incremented like
an odometer. Every call is an independent choice, as distinct keys are in production. Probabilities are floats, or what
`number` converts them to: the tests in ``tests/exact`` use rationals.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np

from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT, Purpose

Outcome = TypeVar("Outcome", bound=Hashable)
Key = tuple[int, str, int]


class EnumeratedRandomness:
    """One replay.

    Args:
        script: index of the possibility that each call takes; 0 after its end.
        number: converts a probability to the number type of the computation.

    Attributes:
        weight: probability of the choices made.
        keys: (position, purpose, node) of every call, in order; a coin's purpose is ``accept``.
        choices, widths: index chosen by every call, and its number of possibilities.
    """

    def __init__(self, script: Sequence[int] = (), number: Callable[[Any], Any] = float) -> None:
        self.weight = number(1)
        self.keys: list[Key] = []
        self.choices: list[int] = []
        self.widths: list[int] = []
        self._script, self._number = script, number

    def coin(self, probability: Any, position: int, node: int) -> bool:
        """See `Randomness`."""
        self.keys.append((position, "accept", node))
        chance = min(max(self._number(probability), 0), 1)
        return self._choose([True, False], [chance, 1 - chance])

    def draw(self, law: Law, position: int, purpose: Purpose, node: int = ROOT) -> int:
        """See `Randomness`."""
        self.keys.append((position, purpose, node))
        return self._choose(law.tokens.tolist(), [self._number(prob) for prob in law.probs])

    def exponentials(self, tokens: np.ndarray, position: int, purpose: Purpose, node: int = ROOT) -> np.ndarray:
        """Raises NotImplementedError: noise cannot be enumerated. Draw through `DraftContext.draw_node`."""
        raise NotImplementedError("noise cannot be enumerated; draw tokens with context.draw_node")

    def _choose(self, options: Sequence[Any], chances: Sequence[Any]) -> Any:
        possible = [(option, chance) for option, chance in zip(options, chances, strict=True) if chance > 0]
        place = len(self.choices)
        choice = self._script[place] if place < len(self._script) else 0
        self.choices.append(choice)
        self.widths.append(len(possible))
        outcome, chance = possible[choice]
        self.weight *= chance
        return outcome


def law_of(
    run: Callable[[EnumeratedRandomness], Outcome], most: int = 100_000, number: Callable[[Any], Any] = float
) -> dict[Outcome, Any]:
    """The distribution of the result of `run` over all outcomes of its randomness; probabilities are `number`s.

    Raises:
        RuntimeError: there are more than `most` outcomes.
    """
    law: dict[Outcome, Any] = defaultdict(lambda: number(0))
    script: list[int] | None = []
    for _ in range(most):
        randomness = EnumeratedRandomness(script, number)
        outcome = run(randomness)
        law[outcome] += randomness.weight
        script = _successor(randomness.choices, randomness.widths)
        if script is None:
            return dict(law)
    raise RuntimeError(f"more than {most} outcomes; draft fewer tokens or draw from a smaller vocabulary")


def _successor(choices: Sequence[int], widths: Sequence[int]) -> list[int] | None:
    """The next script, None after the last."""
    for place in range(len(choices) - 1, -1, -1):
        if choices[place] + 1 < widths[place]:
            return [*choices[:place], choices[place] + 1]
    return None
