"""Prompt lookup: find an earlier occurrence of the last few tokens and propose what followed it.

Needs no model and no training; good where the output repeats the input (summaries, code edits, extraction). Acceptance
probabilities are estimated from the length of the match. For comparing several continuations see `suffix.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
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
"""Prior rates at which repetitions of 1, 2, ... tokens continue, measured on 600 answers of the default model to
prompts of many kinds. Longer repetitions have the last rate."""
_FIRST_WEIGHT = 20
"""Weight of the prior rates, in repetitions."""
_LEAST_ROOM = 512


class NGram:
    """Longest match first: the last n tokens are looked up for n from `prompt_lookup_max` down to `prompt_lookup_min`.

    The tokens after the first match are proposed as a chain, at most to the end of the text. The suffix never matches
    itself. A token's acceptance probability is the rate at which repetitions of that length continued in the outputs of
    all requests. Saxena 2023 (prompt lookup decoding), with vLLM's option names and the published sizes 3 to 1.

    Args:
        prompt_lookup_max, prompt_lookup_min: longest and shortest suffix looked up, in tokens.
        occurrence: which of several earlier occurrences to use.
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
        self._lookup = prompt_lookup_max, prompt_lookup_min, occurrence == "earliest"
        self.traits = replace(NGram.traits, prompt_lookup=self._lookup)
        self._texts: dict[str, _Text] = {}
        self.rates = Rates()
        self._read(_Text(), (0,))  # compile now, not during a request

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One chain per context, empty without a match; the rates are updated from the tokens since the last call."""
        return [self._chain(context) for context in contexts]

    def observe(self, outcome: RequestOutcome) -> None:
        """Update the rates when a request finishes; until then `propose` does that."""
        if outcome.finished:
            text = self._texts.pop(outcome.request_id, None)
            if text is not None and text.is_prefix_of(outcome.token_ids):
                self._read(text, outcome.token_ids)

    def release(self, request_id: str) -> None:
        """Forget a request; if it returns, its text is read again."""
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
        """See `lookup.repetition.read`."""
        start = text.extend(token_ids)
        rates = self.rates
        return reader()(text.tokens, start, text.length, *self._lookup, rates.rates, rates.weights)


class Rates:
    """Moving averages of the rate at which repetitions continue, by their length so far.

    Attributes:
        rates, weights: [lengths] float64 and int64, see `lookup.repetition.read`.
    """

    def __init__(self) -> None:
        self.rates = np.array(FIRST_RATES)
        self.weights = np.full(len(FIRST_RATES), _FIRST_WEIGHT)

    def reaching(self, matched: int, num_tokens: int) -> tuple[float, ...]:
        """[num_tokens] probabilities that a repetition of `matched` tokens continues for at least 1, 2, ... tokens."""
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
        """Whether `token_ids` continues the text read so far, judged by its length and last tokens."""
        return goes_on(token_ids, self.length, self._tail)

    def extend(self, token_ids: Sequence[int]) -> int:
        """Append new tokens; returns the index of the first of them, or at the first call the length of the text."""
        known, self.length = self.length, len(token_ids)
        if self.length > len(self.tokens):
            tokens = np.empty(2 * self.length, np.int32)
            tokens[:known] = self.tokens[:known]
            self.tokens = tokens
        self.tokens[known : self.length] = token_ids[known:]
        self._tail = list(token_ids[-CHECKED_TAIL:])
        return known or self.length
