"""Suffix decoding: what followed the end of the text before, weighed by how often it did.

Looks into the request itself and into the outputs of earlier requests; needs no model. Good for agents and other
traffic that says the same things again. Counting is done in `suffix_trie.py`.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Literal

from paceline.drafters.base import DraftContext
from paceline.drafters.suffix_trie import Draft, Place, SuffixTrie, Text, best_draft, follow_path, follow_tree
from paceline.errors import InvalidParameter
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.traits import DrafterTraits

Mode = Literal["path", "tree"]

_CHECKED_TAIL = 16  # tokens compared to notice that an id now stands for another text
_ENOUGH = 0.98  # shorter matches are not tried for the last two per cent; periodic texts have very many matches
_ROUNDING = 1e-6  # 3 * 1.1 must count as 3.3, not as a little less


class Suffix:
    """SuffixDecoding (Oliaro et al. 2024), after ArcticInference, with its option names.

    Every suffix of the text that occurred before is a match. Each match of length m proposes at most
    ``max_spec_factor * m + max_spec_offset`` nodes, scored by the sum of their estimated chances; the best score wins,
    the longer match on ties, and past outputs only when they score higher than the request itself.

    Args:
        max_depth: longest sequence counted, match and continuation together.
        max_spec_factor, max_spec_offset: how far a match is trusted.
        min_token_prob: nodes with a smaller estimated chance are not proposed.
        mode: ``path`` proposes one continuation, ``tree`` several.
        max_cached_tokens: past output tokens kept; the oldest outputs leave first, 0 keeps none. A token takes up to
            about 1.5 kB, the more the outputs repeat each other.
    """

    name = "suffix"

    def __init__(
        self,
        max_depth: int = 64,
        max_spec_factor: float = 1.0,
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.1,
        mode: Mode = "path",
        max_cached_tokens: int = 32_768,
    ) -> None:
        if max_depth < 2:
            raise InvalidParameter("max_depth", f"{max_depth} is less than 2", "a match and its continuation need two")
        for field, value in (("max_spec_factor", max_spec_factor), ("max_cached_tokens", max_cached_tokens)):
            if value < 0:
                raise InvalidParameter(field, f"{value} is negative", "give 0 or more")
        if not 0 <= min_token_prob <= 1:
            raise InvalidParameter("min_token_prob", f"{min_token_prob} is not in [0, 1]", "give a probability")
        if mode not in ("path", "tree"):
            raise InvalidParameter("mode", f"{mode!r} is unknown", "use 'path' or 'tree'")
        self._max_depth = max_depth
        self._factor, self._offset = max_spec_factor, max_spec_offset
        branches = mode == "tree"
        self.traits = DrafterTraits(
            branches, whole=True, deterministic=True, remembers=max_cached_tokens > 0, scores=True
        )
        self._follow = partial(follow_tree if mode == "tree" else follow_path, min_token_prob=min_token_prob)
        self._past = _PastOutputs(max_depth, max_cached_tokens)
        self._requests: dict[str, _Request] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One tree per context, empty when nothing in it is likely enough."""
        return [self._tree(context) for context in contexts]

    def observe(self, outcome: RequestOutcome) -> None:
        """Count what was committed; a finished request's output joins the past outputs."""
        request = self._requests.get(outcome.request_id)
        if request is None:
            return
        request = self._caught_up(outcome.request_id, outcome.token_ids, request.num_prompt_tokens)
        if outcome.finished:
            self._past.add(outcome.token_ids[request.num_prompt_tokens :])
            self.release(outcome.request_id)

    def release(self, request_id: str) -> None:
        """Forget a request (not the past outputs); its counts are built anew when it comes back."""
        self._requests.pop(request_id, None)

    def expected_accepted(self, request_id: str) -> float:
        """The score of the latest proposal for a request: the estimated number of tokens that stand; 0 for none."""
        request = self._requests.get(request_id)
        return request.score if request else 0.0

    def _tree(self, context: DraftContext) -> TokenTree:
        request = self._caught_up(context.request_id, context.token_ids, context.num_prompt_tokens)
        budget = context.budget if self.traits.branches else context.longest
        own = self._best(request.matches, budget)
        past = self._best(request.past_matches(self._past), budget)
        best = past if past.score > own.score else own
        request.score = best.score
        return TokenTree(tuple(best.tokens), tuple(best.parents))

    def _best(self, places: Sequence[Place], budget: int) -> Draft:
        def limit_of(length: int) -> int:
            return min(budget, int(length * self._factor + self._offset + _ROUNDING))

        return best_draft(places, limit_of, self._follow, self._max_depth, _ENOUGH)

    def _caught_up(self, request_id: str, token_ids: Sequence[int], num_prompt_tokens: int) -> "_Request":
        """The counts of `token_ids`; built anew when the id now stands for another text."""
        request = self._requests.get(request_id)
        if request is None or not request.is_prefix_of(token_ids):
            request = self._requests[request_id] = _Request(self._max_depth, num_prompt_tokens)
        request.extend(token_ids)
        return request


class _Request:
    """Suffix counts of one request, and where its end stands among the past outputs."""

    def __init__(self, max_depth: int, num_prompt_tokens: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.score = 0.0
        self._trie = SuffixTrie(max_depth)
        self._text = self._trie.new_text()
        self._past_places: list[Place] = []
        self._past_version = -1
        self._past_length = 0

    @property
    def matches(self) -> list[Place]:
        """Places of the suffixes of length 1, 2, ... that occurred before in this request."""
        return [Place(node) for node in self._text.active[1:]]

    def is_prefix_of(self, token_ids: Sequence[int]) -> bool:
        """True when `token_ids` is what was counted so far, perhaps longer, as far as length and last tokens tell."""
        tail = self._text.tokens[-_CHECKED_TAIL:]
        length = len(self._text.tokens)
        return len(token_ids) >= length and list(token_ids[length - len(tail) : length]) == tail

    def extend(self, token_ids: Sequence[int]) -> None:
        """Count the tokens behind those known."""
        for token in token_ids[len(self._text.tokens) :]:
            self._trie.append(self._text, token)

    def past_matches(self, past: "_PastOutputs") -> list[Place]:
        """Places of the suffixes of length 1, 2, ... that occur in past outputs; walks only what is new."""
        tokens = self._text.tokens
        if self._past_version != past.version:
            self._past_places, self._past_version = [], past.version
            self._past_length = max(0, len(tokens) - past.trie.max_depth)
        for token in tokens[self._past_length :]:
            self._past_places = past.trie.advance(self._past_places, token)
        self._past_length = len(tokens)
        return self._past_places


class _PastOutputs:
    """Suffix counts of the latest outputs, `max_tokens` of them at most; `version` changes with them."""

    def __init__(self, max_depth: int, max_tokens: int) -> None:
        self.trie = SuffixTrie(max_depth)
        self.version = 0
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._texts: deque[Text] = deque()

    def add(self, token_ids: Sequence[int]) -> None:
        """Count an output and drop the oldest ones that no longer fit; one that cannot fit is cut at its end."""
        kept = token_ids[: self._max_tokens]
        if not kept:
            return
        text = self.trie.new_text()
        for token in kept:
            self.trie.append(text, token)
        self._texts.append(text)
        self._num_tokens += len(kept)
        while self._num_tokens > self._max_tokens:
            oldest = self._texts.popleft()
            self.trie.remove(oldest)
            self._num_tokens -= len(oldest.tokens)
        self.version += 1
