"""Every outcome of a computation that takes coins and draws, with its probability as a Fraction.

`EnumeratedRandomness` stands where `CounterRandomness` stands in production. The computation is replayed once per
outcome: each replay follows a script of choices and takes the first possibility behind its end, and the script then
counts up like an odometer. Every call is a fresh independent choice, which is what distinct keys give in production.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable
from fractions import Fraction
from typing import Any, TypeVar

from paceline.sampling import ROOT, Law

T = TypeVar("T", bound=Hashable)


class EnumeratedRandomness:
    """One replay. `weight` is the probability of its choices; `keys` lists what was asked for, in order."""

    def __init__(self, script: list[int]) -> None:
        self.weight = Fraction(1)
        self.keys: list[tuple[int, str, int]] = []
        self.choices: list[int] = []
        self.widths: list[int] = []
        self._script = script

    def coin(self, probability: Any, position: int, node: int) -> bool:
        self.keys.append((position, "accept", node))
        chance = min(max(_rational(probability), Fraction(0)), Fraction(1))
        return self._choose([(True, chance), (False, 1 - chance)])

    def draw(self, law: Law, position: int, purpose: str, node: int = ROOT) -> int:
        self.keys.append((position, purpose, node))
        return self._choose([(int(token), _rational(prob)) for token, prob in zip(law.tokens, law.probs, strict=True)])

    def _choose(self, options: list[tuple[Any, Fraction]]) -> Any:
        possible = [option for option in options if option[1] > 0]
        place = len(self.choices)
        choice = self._script[place] if place < len(self._script) else 0
        self.choices.append(choice)
        self.widths.append(len(possible))
        outcome, chance = possible[choice]
        self.weight *= chance
        return outcome


def law_of(run: Callable[[EnumeratedRandomness], T]) -> dict[T, Fraction]:
    """The law of what `run` returns, over every outcome of the randomness it is given."""
    law: dict[T, Fraction] = defaultdict(Fraction)
    script: list[int] | None = []
    while script is not None:
        randomness = EnumeratedRandomness(script)
        outcome = run(randomness)
        law[outcome] += randomness.weight
        script = _successor(randomness.choices, randomness.widths)
    if sum(law.values()) != 1:
        raise AssertionError(f"the outcomes carry {sum(law.values())}, not 1")
    return dict(law)


def _successor(choices: list[int], widths: list[int]) -> list[int] | None:
    """The next script, None behind the last."""
    for place in range(len(choices) - 1, -1, -1):
        if choices[place] + 1 < widths[place]:
            return [*choices[:place], choices[place] + 1]
    return None


def _rational(probability: Any) -> Fraction:
    """Refuses floats: a float in the path would make equality an accident."""
    if isinstance(probability, float):
        raise TypeError(f"the float {probability!r} entered exact arithmetic")
    return Fraction(int(probability)) if not isinstance(probability, Fraction) else probability
