"""`DraftPages`: pages of a draft model's cache by request, with prefix sharing and eviction.

Texts with a common prefix share its pages, as in the target's cache. When too few pages are free, a request that is not
drafting is evicted. Its pages keep their content until they are reallocated, so what is left of its text is found again
and only the rest is recomputed. Bookkeeping only: for passes see `draft_runner.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.drafters.trees.growth import Growth
from paceline.models.base import PAGE_SIZE, pages_for, slot_of
from paceline.models.rows import Part
from paceline.models.state_book import HoldsStates
from paceline.sampling.randomness import ROOT
from paceline.scheduling.pages import PagePool, extend_digests

_WINDOW = 256
"""Tokens compared to conclude that two texts agree; retokenising a text changes fewer tokens at its end."""


@dataclass(slots=True)
class Kept:
    """Cache content of one request: committed tokens, then tree nodes in the order in which they were computed.

    Attributes:
        tokens, pages: committed tokens in the cache, and the page table.
        digests: of the leading full pages, which may be shared and are not written again.
        row_tokens, row_parents: of the nodes' rows. A computed `DraftContext.guess` comes first, as a chain.
        row_of_node: node number to row.
        ahead: logits [vocab] after each token of that guess.
        salt: see `pages.salt_of`.
    """

    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    row_tokens: list[int] = field(default_factory=list)
    row_parents: list[int] = field(default_factory=list)
    row_of_node: dict[int, int] = field(default_factory=dict)
    ahead: list[np.ndarray] = field(default_factory=list)
    salt: bytes = b""

    def read_along(self, guess: Sequence[int], logits: np.ndarray) -> None:
        """Record that the chain `guess` was computed, with the logits [len(guess), vocab] after its tokens."""
        self.row_tokens, self.row_parents = list(guess), list(range(-1, len(guess) - 1))
        self.ahead = list(logits)

    def guessed(self, parent_row: int, token: int) -> int | None:
        """The row of the guess that holds `token` after `parent_row` (-1 for the root); None without one."""
        row = parent_row + 1
        return row if row < len(self.ahead) and self.row_tokens[row] == token else None

    def part_of(self, growth: Growth, nodes: Sequence[int]) -> Part:
        """The rows to compute for the logits after `nodes` of a tree; recorded as computed."""
        num_computed = len(self.row_tokens)
        for node in nodes:
            parent = growth.parents[node]
            self.row_of_node[node] = len(self.row_tokens)
            self.row_tokens.append(growth.tokens[node])
            self.row_parents.append(-1 if parent == ROOT else self.row_of_node[parent])
        return Part(self.pages, len(self.tokens), self.row_tokens, self.row_parents, "all", num_computed)

    def accepted_rows(self, token_ids: Sequence[int]) -> list[int]:
        """Rows of the longest tree path that agrees with `token_ids`, in order of depth."""
        keys = zip(self.row_parents, self.row_tokens, strict=True)
        children = {key: row for row, key in enumerate(keys)}
        rows, above = [], -1
        for token in token_ids[len(self.tokens) :]:
            row = children.get((above, token))
            if row is None:
                break
            rows.append(row)
            above = row
        return rows

    def forget_rows(self) -> None:
        """Drop the rows of the latest draft and its guess."""
        self.row_tokens, self.row_parents, self.row_of_node, self.ahead = [], [], {}, []


class DraftPages:
    """Pages of a draft model's cache, by request.

    Args:
        num_pages: pages of the cache.
        states: the cache, where the model has recurrent layers: texts go on only where their states are kept.
    """

    def __init__(self, num_pages: int, states: HoldsStates | None = None) -> None:
        self._states = states
        self.pool = PagePool(num_pages, PAGE_SIZE, None if states is None else states.can_resume)
        self._kept: dict[str, Kept] = {}

    def __getitem__(self, request_id: str) -> Kept:
        return self._kept[request_id]

    def __iter__(self) -> Iterator[str]:
        """Request ids, the least recently used first."""
        return iter(self._kept)

    def get(self, request_id: str) -> Kept | None:
        """The cache content of a request, or None; does not count as a use."""
        return self._kept.get(request_id)

    def recall(self, request_id: str, token_ids: Sequence[int], salt: bytes = b"") -> Kept:
        """The cached prefix of `token_ids`, never including the last one, whose logits are needed. Counts as a use."""
        kept = self._kept.pop(request_id, None) or self._found(token_ids, salt)
        self._kept[request_id] = kept
        same = min(common_prefix(kept.tokens, token_ids), len(token_ids) - 1)
        if same < len(kept.tokens) or kept.row_tokens or self._states is not None:
            self.truncate(kept, same)
        return kept

    def use(self, request_ids: Iterable[str]) -> None:
        """Count a use of the states of these requests."""
        if self._states is not None:
            for kept in map(self._kept.__getitem__, request_ids):
                self._can_follow(kept, len(kept.tokens), self._states)

    def extend(self, kept: Kept, num_tokens: int, victims: Iterable[str]) -> bool:
        """Allocate pages for `num_tokens` tokens in all, evicting `victims` in order if needed; False if too few."""
        missing = pages_for(num_tokens) - len(kept.pages)
        for victim in victims:
            if missing <= self.pool.num_free:
                break
            self.release(victim)
        if missing > self.pool.num_free:
            return False
        kept.pages += self.pool.allocate(missing)
        return True

    def seat(self, request_ids: Sequence[str], seats: Callable[[int, Sequence[str]], bool]) -> int:
        """Number of leading requests of `request_ids` that fit into the cache together, at least one.

        Other requests are evicted first, in least recently used order; for the first of `request_ids`, also the last
        ones among them.

        Args:
            seats: (index in `request_ids`, requests that may be evicted) to whether that request fits.
        """
        others = [each for each in self._kept if each not in request_ids]
        for place in range(len(request_ids)):
            if not seats(place, others if place else [*others, *request_ids[:0:-1]]):
                return place
        return len(request_ids)

    def share(self, kept: Kept) -> None:
        """Register the request's full pages for sharing, and replace those that were already registered by others."""
        known = len(kept.digests)
        if len(kept.tokens) < (known + 1) * PAGE_SIZE:
            return
        extend_digests(kept.digests, kept.tokens, PAGE_SIZE, len(kept.tokens), kept.salt)
        for index in range(known, len(kept.digests)):
            self.pool.publish(kept.pages[index], kept.digests[index])
        found = self.pool.longest_prefix(kept.digests)
        self.pool.share(found)
        self.pool.release(kept.pages[: len(found)])
        kept.pages[: len(found)] = found

    def truncate(self, kept: Kept, length: int) -> None:
        """Drop tree nodes and all tokens from `length` on, and release the pages after it.

        Where `length` lies within a shared page, this request releases that page too and recomputes its tokens; so it
        does with tokens after the last state that is kept.
        """
        kept.forget_rows()
        if length < len(kept.digests) * PAGE_SIZE:
            length -= length % PAGE_SIZE
        if self._states is not None:
            length = self._last_state(kept, length, self._states)
        del kept.digests[length // PAGE_SIZE :]
        del kept.tokens[length:]
        needed = pages_for(length)
        self.pool.release(kept.pages[needed:])
        del kept.pages[needed:]

    def release(self, request_id: str) -> None:
        """Evict a request; does nothing when it is unknown."""
        kept = self._kept.pop(request_id, None)
        if kept is not None:
            self.pool.release(kept.pages)

    def check_integrity(self) -> None:
        """Raise RuntimeError if the bookkeeping is inconsistent."""
        self.pool.check_integrity(kept.pages for kept in self._kept.values())

    def _can_follow(self, kept: Kept, length: int, states: HoldsStates) -> bool:
        return states.can_follow(slot_of(kept.pages, at) for at in range(length - 1, -1, -1))

    def _last_state(self, kept: Kept, length: int, states: HoldsStates) -> int:
        """The most tokens, `length` or whole pages below it, after which the text can go on."""
        if self._can_follow(kept, length, states):
            return length
        whole = range(length // PAGE_SIZE, 0, -1)
        return next((pages * PAGE_SIZE for pages in whole if states.can_resume(kept.pages[pages - 1])), 0)

    def _found(self, token_ids: Sequence[int], salt: bytes) -> Kept:
        """The longest prefix of `token_ids` in registered pages, with references added."""
        digests: list[bytes] = []
        extend_digests(digests, token_ids, PAGE_SIZE, len(token_ids) - 1, salt)
        pages = self.pool.longest_prefix(digests)
        self.pool.share(pages)
        return Kept(list(token_ids[: len(pages) * PAGE_SIZE]), pages, digests[: len(pages)], salt=salt)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of two versions of one text, which differ near the end if at all.

    Where windows of 256 tokens at the same position agree, everything before is taken to agree. A mistake would lower
    acceptance, never exactness: drafts are verified by the laws they were drawn from, whatever text these are given.
    """
    length = min(len(a), len(b))
    same, distance = length, _WINDOW
    while same and list(a[max(0, same - _WINDOW) : same]) != list(b[max(0, same - _WINDOW) : same]):
        same, distance = max(0, length - distance), 2 * distance
    rest = zip(a[same:length], b[same:length], strict=True)
    return next((i for i, (x, y) in enumerate(rest, start=same) if x != y), length)
