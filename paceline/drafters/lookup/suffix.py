"""Suffix decoding: propose the most frequent continuations of earlier occurrences of the text's last tokens.

Searches the request itself and the outputs of earlier requests; needs no model. Good for agents and other repetitive
traffic. Counting: `suffix_trie.py`.

Each call indexes a bounded number of new tokens and proposes from what is indexed so far, so that no step waits for a
long text.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Literal

from paceline.drafters.base import DraftContext
from paceline.drafters.lookup.past_pools import PastPools
from paceline.drafters.lookup.suffix_trie import Draft, Matches, Place, SuffixTrie, best_draft, follow_path, follow_tree
from paceline.drafters.same_text import CHECKED_TAIL, goes_on
from paceline.errors import InvalidParameter
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.traits import DrafterTraits

Mode = Literal["path", "tree"]

_ENOUGH = 0.98  # shorter matches are not tried for the last two per cent; periodic texts have very many matches
_ROUNDING = 1e-6  # 3 * 1.1 must count as 3.3, not as a little less

WORK_PER_STEP = 4096
"""Trie nodes that one call may visit for indexing: about a thousand tokens of prose, 1 to 3 milliseconds."""
LEAST_SHARE = 64
"""Smallest share of these for each request of a large batch."""


class Suffix:
    """SuffixDecoding (Oliaro et al. 2024), after ArcticInference, with its option names.

    Every suffix of the text that occurred before is a match. Each match of length m proposes at most
    ``max_spec_factor * m + max_spec_offset`` nodes, scored by the sum of their estimated probabilities. The best score
    wins, the longer match on ties; past outputs are used only when they score higher than the request itself.

    Args:
        max_depth: longest indexed sequence, match and continuation together.
        max_spec_factor, max_spec_offset: the largest draft as a linear function of the match length.
        min_token_prob: nodes with a smaller estimated probability are not proposed.
        mode: ``path`` proposes one continuation, ``tree`` several.
        max_cached_tokens: past output tokens to keep over all salts; the oldest outputs are dropped first, 0 keeps
            none. A token takes up to about 1.5 kB, the more the outputs repeat each other.
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
            branches=branches, whole=True, deterministic=True, remembers=max_cached_tokens > 0, estimates=True
        )
        self._follow = partial(follow_tree if mode == "tree" else follow_path, min_token_prob=min_token_prob)
        self._past = PastPools(lambda: _PastOutputs(max_depth, max_cached_tokens), max_cached_tokens)
        self._requests: dict[str, _Request] = {}
        self.work = 0
        """Trie nodes visited so far for indexing."""

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One tree per context; empty when no continuation is probable enough.

        New tokens are indexed first, within `WORK_PER_STEP` (or `LEAST_SHARE` per context), plus a quarter of that for
        past outputs.
        """
        requests = [self._request(context) for context in contexts]
        left = WORK_PER_STEP
        for number, (request, context) in enumerate(zip(requests, contexts, strict=True)):
            share = left // (len(contexts) - number)
            work = request.count(context.token_ids, max(LEAST_SHARE, share))
            left, self.work = left - work, self.work + work
        salts = dict.fromkeys(context.salt for context in contexts)
        for salt in salts:
            self.work += self._past.of(salt).catch_up(max(left, WORK_PER_STEP // 4) // len(salts))
        return [self._tree(*each) for each in zip(requests, contexts, strict=True)]

    def observe(self, outcome: RequestOutcome) -> None:
        """Add a finished request's output to the past outputs, to be indexed later."""
        request = self._requests.get(outcome.request_id)
        if request is not None and outcome.finished:
            self._past.add(request.salt, outcome.token_ids[request.num_prompt_tokens :])
            self.release(outcome.request_id)

    def release(self, request_id: str) -> None:
        """Forget a request, but not past outputs; if it returns, its text is indexed again."""
        self._requests.pop(request_id, None)

    def _tree(self, request: "_Request", context: DraftContext) -> TokenTree:
        budget = context.budget if self.traits.branches else context.longest
        own = self._best(request.matches(context.token_ids), budget)
        past = self._best(request.past_matches(self._past.of(context.salt).trie, context.token_ids), budget)
        best = past if past.score > own.score else own
        tree = TokenTree(tuple(best.tokens), tuple(best.parents), chances=tuple(best.chances))
        return tree.prune(budget, context.max_depth)

    def _best(self, places: Sequence[Place], budget: int) -> Draft:
        def limit_of(length: int) -> int:
            return min(budget, int(length * self._factor + self._offset + _ROUNDING))

        return best_draft(places, limit_of, self._follow, self._max_depth, _ENOUGH)

    def _request(self, context: DraftContext) -> "_Request":
        """The index of a request; restarted when its text is not a continuation."""
        request = self._requests.get(context.request_id)
        if request is None or not request.is_prefix_of(context.token_ids):
            request = self._requests[context.request_id] = _Request(
                self._max_depth, context.num_prompt_tokens, context.salt
            )
        return request


class _Request:
    """Suffix counts of one request, and how long its latest matches were."""

    def __init__(self, max_depth: int, num_prompt_tokens: int, salt: bytes) -> None:
        self.num_prompt_tokens, self.salt = num_prompt_tokens, salt
        self._trie = SuffixTrie(max_depth)
        self._text = self._trie.new_text()
        self._own, self._past = _Lookup(), _Lookup()

    def is_prefix_of(self, token_ids: Sequence[int]) -> bool:
        """Whether `token_ids` continues the indexed text, judged by its length and last tokens."""
        return goes_on(token_ids, len(self._text.tokens), self._text.tokens[-CHECKED_TAIL:])

    def count(self, token_ids: Sequence[int], most: int) -> int:
        """Index new tokens until `most` nodes were visited; returns the number of nodes visited."""
        work, known = 0, len(self._text.tokens)
        for token in token_ids[known : known + most]:
            if work >= most:
                break
            work += self._trie.append(self._text, token)
        return work

    def matches(self, token_ids: Sequence[int]) -> Sequence[Place]:
        """Places of the suffixes of length 1, 2, ... that occurred before in what has been counted."""
        if len(self._text.tokens) == len(token_ids):
            return [Place(node) for node in self._text.active[1:]]
        return self._own.matches(self._trie, token_ids)

    def past_matches(self, past: SuffixTrie, token_ids: Sequence[int]) -> Sequence[Place]:
        """Places of the suffixes of length 1, 2, ... that occur in past outputs."""
        return self._past.matches(past, token_ids)


class _Lookup:
    """Repeated lookups of one growing text in a trie; the previous match length is the first guess."""

    def __init__(self) -> None:
        self._length, self._num_read = 0, 0

    def matches(self, trie: SuffixTrie, token_ids: Sequence[int]) -> Matches:
        grown = self._length + len(token_ids) - self._num_read
        found = Matches(trie, token_ids[-trie.max_depth :], grown)
        self._length, self._num_read = len(found), len(token_ids)
        return found


class _Output:
    """A past output: its tokens, the `Text` of those indexed so far, and the number removed again."""

    def __init__(self, token_ids: Sequence[int], trie: SuffixTrie) -> None:
        self.tokens, self.text = list(token_ids), trie.new_text()
        self.num_forgotten = 0


class _PastOutputs:
    """Suffix counts of the latest outputs, of at most `max_tokens` tokens, indexed and removed in slices."""

    def __init__(self, max_depth: int, max_tokens: int) -> None:
        self.trie = SuffixTrie(max_depth)
        self._max_tokens = max_tokens
        self.num_tokens = 0
        self._outputs: deque[_Output] = deque()
        self._uncounted: deque[_Output] = deque()  # the latest of them
        self._leaving: deque[_Output] = deque()  # no longer among them

    def add(self, token_ids: Sequence[int]) -> None:
        """Add an output, to be indexed later, and drop the oldest ones; an output that is too long is truncated."""
        kept = token_ids[: self._max_tokens]
        if not kept:
            return
        output = _Output(kept, self.trie)
        self._outputs.append(output)
        self._uncounted.append(output)
        self.num_tokens += len(kept)
        while self.num_tokens > self._max_tokens:
            oldest = self._outputs.popleft()
            self.num_tokens -= len(oldest.tokens)
            self._leaving.append(oldest)
            if self._uncounted[0] is oldest:
                self._uncounted.popleft()

    def catch_up(self, most: int) -> int:
        """Remove and index until about `most` nodes were visited; returns the number of nodes visited."""
        work = self._forget(most // 2 if self._uncounted else most)
        return work + self._count(most - work)

    def _forget(self, most: int) -> int:
        work = 0
        while self._leaving and work < most:
            output = self._leaving[0]
            if output.num_forgotten == len(output.text.tokens):
                self._leaving.popleft()
                continue
            work += self.trie.remove(output.text, output.num_forgotten)
            output.num_forgotten += 1
        return work

    def _count(self, most: int) -> int:
        work = 0
        while self._uncounted and work < most:
            output = self._uncounted[0]
            work += self.trie.append(output.text, output.tokens[len(output.text.tokens)])
            if len(output.text.tokens) == len(output.tokens):
                self._uncounted.popleft()
        return work
