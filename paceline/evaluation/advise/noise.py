"""Randomness for replaying given texts: draws that reproduce the text, and noise conditioned on the text.

Not for generating: every draw here knows the text.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.sampling import CounterRandomness, Law
from paceline.sampling.randomness import ROOT, Purpose


class AlongText(CounterRandomness):
    """Makes a draft's draws follow the text wherever the draft's law allows it.

    So one proposal gives the draft's laws along the text, whatever it would have drawn.

    Args:
        token_ids: prompt and output.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        super().__init__(0)
        self._token_ids = token_ids

    def draw(self, law: Law, position: int, purpose: Purpose, node: int = ROOT) -> int:
        """The text's token at `position`, or the law's most probable token where that one has probability 0."""
        if position < len(self._token_ids) and law.prob(self._token_ids[position]) > 0:
            return self._token_ids[position]
        return law.mode


class NoiseOfText(CounterRandomness):
    """The target's noise, drawn from its distribution conditioned on the text.

    Given that x won the race argmin e_y / p_y, the minimum M has the law Exp(1) whatever x is, e_x = p_x M, and e_y =
    p_y M + Exp(1) for all others, by memorylessness.

    Args:
        first: position of the first output token.
        seed: of the noise.
    """

    def __init__(self, first: int, seed: int = 0) -> None:
        super().__init__(seed)
        self._first, self._noise = first, list[np.ndarray]()
        self._rng = np.random.default_rng([seed, first])

    def add(self, law: Law, token: int, vocab_size: int) -> None:
        """The next token of the text, and the law [vocab] it was drawn from."""
        smallest = float(self._rng.exponential())
        noise = self._rng.exponential(size=vocab_size)
        noise[law.tokens] += law.probs * smallest
        noise[token] = law.prob(token) * smallest
        self._noise.append(noise.astype(np.float32))

    def exponentials(self, tokens: np.ndarray, position: int, purpose: Purpose, node: int = ROOT) -> Any:
        """See `Randomness`; after the end of the text the noise is unconditioned."""
        place = position - self._first
        if purpose == "target" and 0 <= place < len(self._noise):
            return self._noise[place][tokens].astype(np.float64)
        return super().exponentials(tokens, position, purpose, node)
