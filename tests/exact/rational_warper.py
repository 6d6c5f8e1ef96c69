"""The processors written a second time, over rationals, so that whole decode loops can be enumerated exactly.

A logit is the logarithm of a rational weight: a bias or a penalty multiplies the weight, a temperature of 1/m raises it
to the power m, and a repetition penalty of 2 takes a square root above 1 and a square below, so weights are squares.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import log

import numpy as np

from paceline.sampling import Law, Warper
from paceline.types import SamplingParams


@dataclass(frozen=True)
class RationalProcessors:
    """`SamplingParams` in rational clothes; `repetition` switches a penalty of 2 on."""

    bias: dict[int, Fraction] = field(default_factory=dict)
    repetition: bool = False
    presence: Fraction = Fraction(1)
    frequency: Fraction = Fraction(1)
    min_tokens: int = 0
    end_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    power: int = 1
    min_p: Fraction = Fraction(0)
    top_k: int = 0
    top_p: Fraction = Fraction(1)
    grammar: Callable[[tuple[int, ...]], set[int]] | None = None
    """Tokens that may follow an output."""

    def law(self, roots: Sequence[Fraction], prompt: Sequence[int], history: Sequence[int]) -> Law:
        """The law at logits 2 log(roots)."""
        weights = [
            self._edited(token, root * root * self.bias.get(token, 1), prompt, history) ** self.power
            for token, root in enumerate(roots)
        ]
        keep = self._truncated(weights)
        kept = [weight if token in keep else Fraction(0) for token, weight in enumerate(weights)]
        exact = np.array(kept, dtype=object)
        return Law.from_dense(exact / exact.sum())

    def warper(self, prompt: Sequence[int], output: Sequence[int] = ()) -> Warper:
        """The production warper that this object describes, after `output`."""
        params = SamplingParams(
            temperature=1 / self.power,
            top_p=float(self.top_p),
            top_k=self.top_k,
            min_p=float(self.min_p),
            repetition_penalty=2.0 if self.repetition else 1.0,
            presence_penalty=log(self.presence),
            frequency_penalty=log(self.frequency),
            logit_bias={token: log(factor) for token, factor in self.bias.items()},
            min_tokens=self.min_tokens,
        )
        return Warper(
            params, bad_word_ids=self.bad_words, eos_token_ids=self.end_ids, token_ids=[*prompt, *output],
            num_prompt_tokens=len(prompt), grammar=TableCursor(self.grammar, output) if self.grammar else None,
        )  # fmt: skip

    def _edited(self, token: int, weight: Fraction, prompt: Sequence[int], history: Sequence[int]) -> Fraction:
        if self.repetition and (token in prompt or token in history):
            weight = _square_root(weight) if weight > 1 else weight * weight
        if token in history:
            weight /= self.presence * self.frequency ** list(history).count(token)
        too_early = token in self.end_ids and len(history) < self.min_tokens
        said = (*history, token)
        if self.grammar is not None and token not in self.grammar(tuple(history)):
            return Fraction(0)
        return Fraction(0) if too_early or any(said[-len(word) :] == word for word in self.bad_words) else weight

    def _truncated(self, weights: list[Fraction]) -> set[int]:
        ranked = sorted((token for token in range(len(weights)) if weights[token]), key=lambda t: (-weights[t], t))
        ranked = [token for token in ranked if weights[token] >= self.min_p * weights[ranked[0]]]
        if self.top_k and self.top_k < len(ranked):
            ranked = [token for token in ranked if weights[token] >= weights[ranked[self.top_k - 1]]]
        total, mass = sum(weights[token] for token in ranked), Fraction(0)
        nucleus: set[int] = set()
        for token in ranked:
            if mass >= self.top_p * total:
                break
            nucleus.add(token)
            mass += weights[token]
        return nucleus


class TableCursor:
    """A `GrammarCursor` over a table of three tokens, after `output`."""

    is_finished = False

    def __init__(self, table: Callable[[tuple[int, ...]], set[int]], output: Sequence[int] = ()) -> None:
        self._table, self._output = table, tuple(output)

    def allowed(self, path: Sequence[int] = ()) -> np.ndarray | None:
        said = self._output
        for token in path:
            if token not in self._table(said):
                return None
            said = (*said, token)
        return np.array([token in self._table(said) for token in range(3)])

    def allows(self, token: int, path: Sequence[int] = ()) -> bool:
        mask = self.allowed(path)
        return mask is not None and bool(mask[token])

    def forced(self) -> Sequence[int]:
        tokens: list[int] = []
        while len(follow := self._table((*self._output, *tokens))) == 1 and len(tokens) < 4:
            tokens += follow
        return tokens

    def commit(self, token: int) -> None:
        if token not in self._table(self._output):
            raise ValueError(token)
        self._output = (*self._output, token)


def logits(roots: Sequence[Fraction]) -> np.ndarray:
    """[vocab] float64: 2 log(roots)."""
    return np.array([2 * log(root) for root in roots])


def _square_root(weight: Fraction) -> Fraction:
    top, bottom = (round(part**0.5) for part in weight.as_integer_ratio())
    if Fraction(top, bottom) ** 2 != weight:
        raise AssertionError(f"{weight} is no square of a rational")
    return Fraction(top, bottom)
