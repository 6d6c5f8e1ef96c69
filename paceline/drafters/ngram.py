"""Prompt lookup: what followed the last few tokens the time before is proposed again.

Needs no model and no training; good where the output repeats the input (summaries, code edits, extraction). Each token
comes with its chance to be accepted, told by how long a piece of text was repeated before it. Weighing several
continuations against each other is `suffix.py`'s.
"""

from collections.abc import Sequence
from typing import Literal

from paceline.drafters.base import DraftContext
from paceline.drafters.same_text import CHECKED_TAIL, goes_on
from paceline.errors import InvalidParameter
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.traits import DrafterTraits

Occurrence = Literal["latest", "earliest"]

FIRST_RATES = (0.2, 0.45, 0.55, 0.65, 0.68, 0.7, 0.78, 0.8, 0.84, 0.86, 0.87, 0.88, 0.89, 0.9, 0.91, 0.97)
"""How often a repetition of 1, 2, ... tokens went on, before any was seen: so it was in 600 answers of the default
model to prompts of many kinds. Longer ones count as the last."""
_FIRST_WEIGHT, _MOST_WEIGHT = 20, 200
"""Repetitions that these rates count for, and after how many the oldest are forgotten."""


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
        self._sizes = range(prompt_lookup_max, prompt_lookup_min - 1, -1)
        self._occurrence: Occurrence = occurrence
        self._indexes: dict[str, _Index] = {}
        self.rates = Rates()

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One chain per context, empty without a match."""
        return [self._chain(context) for context in contexts]

    def observe(self, outcome: RequestOutcome) -> None:
        """Learn from what was committed and index it; costs the same for every token, however long the text is."""
        index = self._indexes.get(outcome.request_id)
        if index is not None and index.is_prefix_of(outcome.token_ids):
            index.extend(outcome.token_ids, self.rates)
        if outcome.finished:
            self.release(outcome.request_id)

    def release(self, request_id: str) -> None:
        """Forget a request; its index is built anew when it comes back."""
        self._indexes.pop(request_id, None)

    def _chain(self, context: DraftContext) -> TokenTree:
        token_ids = context.token_ids
        end, matched = self._indexed(context.request_id, token_ids).find(token_ids, len(token_ids))
        if not matched:
            return TokenTree()
        tokens = token_ids[end : end + context.longest]
        return TokenTree.chain(tokens, chances=self.rates.reaching(matched, len(tokens)))

    def _indexed(self, request_id: str, token_ids: Sequence[int]) -> "_Index":
        """The index of `token_ids`, extended by what is new, or a fresh one when the id now stands for another text."""
        index = self._indexes.get(request_id)
        if index is None or not index.is_prefix_of(token_ids):
            index = self._indexes[request_id] = _Index(self._sizes, self._occurrence)
        index.extend(token_ids)
        return index


class Rates:
    """How often a repetition went on, by its length so far; moving averages."""

    def __init__(self) -> None:
        self._rates = list(FIRST_RATES)
        self._weights = [_FIRST_WEIGHT] * len(FIRST_RATES)

    def reaching(self, matched: int, num_tokens: int) -> tuple[float, ...]:
        """[num_tokens] chances that a repetition of `matched` tokens goes on for at least 1, 2, ... more."""
        longest, chance, chances = len(self._rates), 1.0, []
        for length in range(matched, matched + num_tokens):
            chance *= self._rates[min(length, longest) - 1]
            chances.append(chance)
        return tuple(chances)

    def learn(self, matched: int, went_on: bool) -> None:
        """A repetition of `matched` tokens went on, or did not."""
        place = min(matched, len(self._rates)) - 1
        self._weights[place] = weight = min(_MOST_WEIGHT, self._weights[place] + 1)
        self._rates[place] += (went_on - self._rates[place]) / weight


class _Index:
    """n-gram to the position after it, for all n-grams of one text but those that end with its last token."""

    def __init__(self, sizes: range, occurrence: Occurrence) -> None:
        self._sizes = sizes
        self._keep_first = occurrence == "earliest"
        self._ends: dict[tuple[int, ...], int] = {}
        self._length = 0
        self._tail: list[int] = []

    def is_prefix_of(self, token_ids: Sequence[int]) -> bool:
        """True when `token_ids` is what was indexed so far, perhaps longer, as far as length and last tokens tell."""
        return goes_on(token_ids, self._length, self._tail)

    def extend(self, token_ids: Sequence[int], rates: Rates | None = None) -> None:
        """Take in new tokens, telling `rates` which of them went on with a repetition.

        An n-gram enters once a token follows it, so that no suffix finds itself.
        """
        ends = self._ends
        for end in range(max(1, self._length), len(token_ids)):
            if rates:
                found, matched = self.find(token_ids, end)
                if matched:
                    rates.learn(matched, token_ids[found] == token_ids[end])
            for size in self._sizes:
                if size <= end:
                    gram = tuple(token_ids[end - size : end])
                    if not self._keep_first or gram not in ends:
                        ends[gram] = end
        self._length = len(token_ids)
        self._tail = list(token_ids[-CHECKED_TAIL:])

    def find(self, token_ids: Sequence[int], length: int) -> tuple[int, int]:
        """The position after an earlier occurrence of the longest suffix of the first `length` tokens that has one.

        Returns:
            It, and how many tokens before it are those at the end, counted up to the longest that has a rate of its
            own; (0, 0) without an occurrence.
        """
        for size in self._sizes:
            end = self._ends.get(tuple(token_ids[length - size : length])) if size < length else None
            if end is not None and token_ids[end - size : end] == token_ids[length - size : length]:
                while size < min(end, len(FIRST_RATES)) and token_ids[end - size - 1] == token_ids[length - size - 1]:
                    size += 1
                return end, size
        return 0, 0
