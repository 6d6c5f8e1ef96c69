"""Prompt lookup: what followed the last few tokens the time before is proposed again.

Needs no model and no training; good where the output repeats the input (summaries, code edits, extraction). Weighing
several continuations against each other is `suffix.py`'s.
"""

from collections.abc import Sequence
from typing import Literal

from paceline.drafters.base import DraftContext
from paceline.errors import InvalidParameter
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.traits import DrafterTraits

Occurrence = Literal["latest", "earliest"]

_CHECKED_TAIL = 16  # tokens compared to notice that an id now stands for another text


class NGram:
    """Longest match first: the last n tokens are looked up for n from `prompt_lookup_max` down to `prompt_lookup_min`.

    The first hit wins and the tokens after it are proposed as a chain, at most to the end of the text. The suffix
    never matches itself. Saxena 2023 (prompt lookup decoding), with vLLM's option names and the published sizes 3 to 1.

    Args:
        prompt_lookup_max, prompt_lookup_min: longest and shortest suffix looked up, in tokens.
        occurrence: which of several earlier occurrences is continued.
    """

    name = "ngram"
    traits = DrafterTraits(deterministic=True)

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

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One chain per context, empty without a match."""
        return [TokenTree.chain(self._continuation(context)) for context in contexts]

    def observe(self, outcome: RequestOutcome) -> None:
        """Index what was committed; costs the same for every token, however long the text is."""
        if outcome.request_id in self._indexes:
            self._indexed(outcome.request_id, outcome.token_ids)
        if outcome.finished:
            self.release(outcome.request_id)

    def release(self, request_id: str) -> None:
        """Forget a request; its index is built anew when it comes back."""
        self._indexes.pop(request_id, None)

    def _continuation(self, context: DraftContext) -> Sequence[int]:
        token_ids = context.token_ids
        end = self._indexed(context.request_id, token_ids).find(token_ids)
        return [] if end is None else token_ids[end : end + context.longest]

    def _indexed(self, request_id: str, token_ids: Sequence[int]) -> "_Index":
        """The index of `token_ids`, extended by what is new, or a fresh one when the id now stands for another text."""
        index = self._indexes.get(request_id)
        if index is None or not index.is_prefix_of(token_ids):
            index = self._indexes[request_id] = _Index(self._sizes, self._occurrence)
        index.extend(token_ids)
        return index


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
        start = self._length - len(self._tail)
        return len(token_ids) >= self._length and list(token_ids[start : self._length]) == self._tail

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take in new tokens. An n-gram enters once a token follows it, so that no suffix finds itself."""
        ends = self._ends
        for end in range(max(1, self._length), len(token_ids)):
            for size in self._sizes:
                if size <= end:
                    gram = tuple(token_ids[end - size : end])
                    if not self._keep_first or gram not in ends:
                        ends[gram] = end
        self._length = len(token_ids)
        self._tail = list(token_ids[-_CHECKED_TAIL:])

    def find(self, token_ids: Sequence[int]) -> int | None:
        """The position after an earlier occurrence of the longest suffix that has one."""
        for size in self._sizes:
            end = self._ends.get(tuple(token_ids[-size:])) if size < len(token_ids) else None
            if end is not None and token_ids[end - size : end] == token_ids[-size:]:
                return end
        return None
