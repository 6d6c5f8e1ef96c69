"""What drafters need of the target on a text: hidden states, keys and values, probabilities, noise.

A single prefill of the whole text replaces all passes that generated it. Not for drafting (`walk.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.engine.loop.engine import Engine
from paceline.engine.score import laws_of
from paceline.errors import InvalidParameter
from paceline.evaluation.advise.noise import NoiseOfText
from paceline.evaluation.advise.replay import Text
from paceline.models.base import CausalLM, pages_for
from paceline.models.rows import Part, build_rows
from paceline.sampling import CounterRandomness
from paceline.sampling.randomness import Randomness
from paceline.types import SamplingParams

_CHUNK = 128
"""Rows of a pass."""


@dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """The target's prefill of one text.

    Attributes:
        pages: pages of its keys and values; empty if no drafter needs them.
        taps: tap to hidden states [tokens, hidden] of prompt and output.
        probs: [output tokens] probabilities under the request's law; empty if not needed.
        randomness, coupled: of the request's draws, as in `DraftContext`.
    """

    pages: Sequence[int] = ()
    taps: dict[int, np.ndarray] = field(default_factory=dict)
    probs: Sequence[float] = ()
    randomness: Randomness = field(default_factory=lambda: CounterRandomness(0))
    coupled: bool = False

    def taps_of(self, first: int, last: int) -> dict[int, np.ndarray] | None:
        """Hidden states of the tokens at positions `first` to `last` - 1; None without taps."""
        return {tap: states[first:last] for tap, states in self.taps.items()} or None


class Reader:
    """Prefills texts into the cache of an engine, where its drafter finds them.

    Args:
        model: the target.
        engine: has the drafter; nothing else runs on it.
        params: of the requests.
        most: largest number of nodes of a draft; there must be room for them after any token.
    """

    def __init__(self, model: CausalLM, engine: Engine, params: SamplingParams, most: int) -> None:
        self.model, self.cache, self._pool = model, engine.cache, engine.scheduler.pool
        self._taps, self._params, self._spare = engine.drafter.traits.taps, params, 2 * (most + 1)

    def read(self, text: Text, coupled: bool = False) -> Reading:
        """The reading of a text; `release` it before the next.

        Args:
            coupled: drafts will be drawn with the target's noise: that of the text's seed, or sampled given the text.

        Raises:
            InvalidParameter: the text is longer than the model's positions.
        """
        whole = [*text.prompt, *text.output]
        limit = self.model.config.max_position_embeddings
        if len(whole) > limit:
            raise InvalidParameter("traffic", f"a text has {len(whole)} tokens, the model reads {limit}", "cut it")
        probs, noise = self._laws(text, coupled)
        pages = self._pool.allocate(pages_for(len(whole) + self._spare))
        pieces = []
        for start in range(0, len(whole), _CHUNK):
            part = Part(pages, start, whole[start : start + _CHUNK], logits="none")
            taps = self.model.forward(build_rows([part]), self.cache, self._taps).taps
            pieces.append({tap: states.copy() for tap, states in taps.items()})
        joined = {tap: np.concatenate([piece[tap] for piece in pieces]) for tap in self._taps}
        return Reading(pages, joined, probs, noise, coupled)

    def release(self, reading: Reading) -> None:
        """Release its pages."""
        self._pool.release(list(reading.pages))

    def _laws(self, text: Text, coupled: bool) -> tuple[list[float], Randomness]:
        """(probabilities of the output tokens, the noise of their draws); no probabilities for a greedy text."""
        if self._params.is_greedy:
            return [], CounterRandomness(0)
        noise = NoiseOfText(len(text.prompt))
        is_known = text.seed is not None
        probs = []
        for token, law in laws_of(self.model, [*text.prompt, *text.output], len(text.prompt), self._params):
            probs.append(float(law.prob(token)))
            if coupled and not is_known:
                noise.add(law, token, self.model.config.vocab_size)
        return probs, CounterRandomness(text.seed) if text.seed is not None else noise
