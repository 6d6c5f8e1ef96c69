"""Prompt lookup: what followed the last few tokens the time before is proposed again.

Needs no model and no training; good where the output repeats the input (summaries, code edits, extraction). Each token
comes with its chance to be accepted, told by how long a piece of text was repeated before it. Weighing several
continuations against each other is `suffix.py`'s.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.lookup.repetition import reader
from paceline.drafters.same_text import CHECKED_TAIL, goes_on
from paceline.errors import InvalidParameter
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.traits import DrafterTraits

Occurrence = Literal["latest", "earliest"]

FIRST_RATES = (0.2, 0.45, 0.55, 0.65, 0.68, 0.7, 0.78, 0.8, 0.84, 0.86, 0.87, 0.88, 0.89, 0.9, 0.91, 0.97)
"""How often a repetition of 1, 2, ... tokens went on, before any was seen: so it was in 600 answers of the default
model to prompts of many kinds. Longer ones count as the last."""
_FIRST_WEIGHT = 20
"""Repetitions that these rates count for."""
_LEAST_ROOM = 512


class NGram:
    """Longest match first: the last n tokens are looked up for n from `prompt_lookup_max` down to `prompt_lookup_min`.

    The first hit wins and the tokens after it are proposed as a chain, at most to the end of the text. The suffix
    never matches itself. A token's chance is the rate at which repetitions as long as the one that ends before it went
    on in the outputs of all requests. Saxena 2023 (prompt lookup decoding), with vLLM's option names and the published
    sizes 3 to 1.

    Args:
        prompt_lookup_max, prompt_lookup_min: longest and shortest suffix looked up, in tokens.
        occurrence: which of several earlier occurrences is continued.
    """

    name = "ngram"
    traits = DrafterTraits(deterministic=True, estimates=True)

    def __init__(
        self, prompt_lookup_max: int = 3, prompt_lookup_min: int = 1, occurrence: Occurrence = "latest"
    ) -> None:
        if prompt_lookup_min < 1:
            raise InvalidParameter("prompt_lookup_min", f"{prompt_lookup_min} is less than 1", "match at least a token")
        if prompt_lookup_max < prompt_lookup_min:
            problem = f"{prompt_lookup_max} is less than prompt_lookup_min={prompt_lookup_min}"
            raise InvalidParameter("prompt_lookup_max", problem, "raise it or lower prompt_lookup_min")
        if occurrence not in ("latest", "earliest"):
            raise InvalidParameter("occurrence", f"{occurrence!r} is unknown", "use 'latest' or 'earliest'")
        self._sizes = prompt_lookup_max, prompt_lookup_min
        self._is_earliest = occurrence == "earliest"
        self._texts: dict[str, _Text] = {}
        self.rates = Rates()
        self._read(_Text(), (0,))  # compiled now, not while a request waits

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One chain per context, empty without a match; what was said since the last time is learned from."""
        return [self._chain(context) for context in contexts]

    def observe(self, outcome: RequestOutcome) -> None:
        """Learn from the end of an answer. What is said until then is read when the request asks again."""
        if outcome.finished:
            text = self._texts.pop(outcome.request_id, None)
            if text is not None and text.is_prefix_of(outcome.token_ids):
                self._read(text, outcome.token_ids)

    def release(self, request_id: str) -> None:
        """Forget a request; its text is read anew when it comes back."""
        self._texts.pop(request_id, None)

    def _chain(self, context: DraftContext) -> TokenTree:
        token_ids = context.token_ids
        text = self._texts.get(context.request_id)
        if text is None or not text.is_prefix_of(token_ids):
            text = self._texts[context.request_id] = _Text()
        end, matched = self._read(text, token_ids)
        if not matched:
            return TokenTree()
        tokens = token_ids[end : end + context.longest]
        return TokenTree.chain(tokens, chances=self.rates.reaching(matched, len(tokens)))

    def _read(self, text: "_Text", token_ids: Sequence[int]) -> tuple[int, int]:
        """As of `lookup.repetition.read`."""
        start = text.extend(token_ids)
        rates = self.rates
        return reader()(text.tokens, start, text.length, *self._sizes, self._is_earliest, rates.rates, rates.weights)


class Rates:
    """How often a repetition went on, by its length so far; moving averages.

    Attributes:
        rates, weights: [lengths] float64 and int64, see `lookup.repetition.read`.
    """

    def __init__(self) -> None:
        self.rates = np.array(FIRST_RATES)
        self.weights = np.full(len(FIRST_RATES), _FIRST_WEIGHT)

    def reaching(self, matched: int, num_tokens: int) -> tuple[float, ...]:
        """[num_tokens] chances that a repetition of `matched` tokens goes on for at least 1, 2, ... more."""
        rates, chance, chances = self.rates[matched - 1 : matched - 1 + num_tokens].tolist(), 1.0, []
        for place in range(num_tokens):
            chance *= rates[place] if place < len(rates) else float(self.rates[-1])
            chances.append(chance)
        return tuple(chances)


class _Text:
    """The tokens of one request as an array.

    Attributes:
        tokens: [room] int32, of which `length` are set.
    """

    def __init__(self) -> None:
        self.tokens, self.length = np.empty(_LEAST_ROOM, np.int32), 0
        self._tail: list[int] = []

    def is_prefix_of(self, token_ids: Sequence[int]) -> bool:
        """True when `token_ids` is what was read so far, perhaps longer, as far as length and last tokens tell."""
        return goes_on(token_ids, self.length, self._tail)

    def extend(self, token_ids: Sequence[int]) -> int:
        """Take in what is new; the place from which on it was said while we listened, its end for a first reading."""
        known, self.length = self.length, len(token_ids)
        if self.length > len(self.tokens):
            tokens = np.empty(2 * self.length, np.int32)
            tokens[:known] = self.tokens[:known]
            self.tokens = tokens
        self.tokens[known : self.length] = token_ids[known:]
        self._tail = list(token_ids[-CHECKED_TAIL:])
        return known or self.length
