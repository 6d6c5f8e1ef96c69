"""`DraftPages`: which of a draft model's pages hold which request's text, and what is given up when pages run short.

Texts that begin alike share the pages of their beginning, as in the target's cache. When too few pages are free, a
request that is not being drafted for is given up; its pages keep their content until somebody takes them, so what is
left of its text is found again and only the rest is read anew. Bookkeeping only: passes are `draft_runner.py`'s.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.models.base import PAGE_SIZE, pages_for
from paceline.scheduling.pages import PagePool, extend_digests

_WINDOW = 256
"""Tokens compared to find two texts the same; a text that is spelled anew changes fewer of them at its end."""


@dataclass(slots=True)
class Kept:
    """What of a request lies in the cache: committed tokens, and after them tree nodes in the order they were run.

    Attributes:
        digests: of the leading full pages that others may share; these are not written again.
        row_tokens, row_parents: of the nodes; a guess that was read along comes first, a chain.
        ahead: logits [vocab] below the rows of that guess.
        salt: who may share its pages.
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
        """Count the chain `guess` as run, with the logits [len(guess), vocab] below its tokens."""
        self.row_tokens, self.row_parents = list(guess), list(range(-1, len(guess) - 1))
        self.ahead = list(logits)

    def guessed(self, parent_row: int, token: int) -> int | None:
        """The row of the guess that is `token` below `parent_row`, -1 for the root; None where none is."""
        row = parent_row + 1
        return row if row < len(self.ahead) and self.row_tokens[row] == token else None

    def accepted_rows(self, token_ids: Sequence[int]) -> list[int]:
        """Rows of the tree that `token_ids` goes through, in order of depth."""
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
        """Drop the rows of the latest draft, and the guess that was read along with them."""
        self.row_tokens, self.row_parents, self.row_of_node, self.ahead = [], [], {}, []


class DraftPages:
    """Pages of a draft model's cache, by request.

    Args:
        num_pages: pages of the cache.
    """

    def __init__(self, num_pages: int) -> None:
        self.pool = PagePool(num_pages, PAGE_SIZE)
        self._kept: dict[str, Kept] = {}

    def __getitem__(self, request_id: str) -> Kept:
        return self._kept[request_id]

    def __iter__(self) -> Iterator[str]:
        """Requests, the one whose turn is longest ago first."""
        return iter(self._kept)

    def get(self, request_id: str) -> Kept | None:
        """What is kept for a request, if anything; its turn stays as it is."""
        return self._kept.get(request_id)

    def recall(self, request_id: str, token_ids: Sequence[int], salt: bytes = b"") -> Kept:
        """What is there of `token_ids`, never the last one: it must be run for its logits. Its turn is the latest."""
        kept = self._kept.pop(request_id, None) or self._found(token_ids, salt)
        self._kept[request_id] = kept
        self.truncate(kept, min(common_prefix(kept.tokens, token_ids), len(token_ids) - 1))
        return kept

    def extend(self, kept: Kept, num_tokens: int, victims: Iterable[str]) -> bool:
        """Pages for `num_tokens` in all, `victims` given up in turn while too few are free; False: still too few."""
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
        """How many of the first of `request_ids` find room together, at least one.

        Room is taken from requests that are not among them, the one longest ago first; for the first of them, from the
        last of them as well.

        Args:
            seats: (place in `request_ids`, requests that may be given up) to whether that request found room.
        """
        others = [each for each in self._kept if each not in request_ids]
        for place in range(len(request_ids)):
            if not seats(place, others if place else [*others, *request_ids[:0:-1]]):
                return place
        return len(request_ids)

    def share(self, kept: Kept) -> None:
        """Let others find its full pages, whose rows have been run, and use theirs where equal ones were there."""
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
        """Forget tree nodes and everything after `length` tokens, and return whole pages after it.

        Where `length` lies within a page that others may read, that page is left to them.
        """
        kept.forget_rows()
        if length < len(kept.digests) * PAGE_SIZE:
            length -= length % PAGE_SIZE
            del kept.digests[length // PAGE_SIZE :]
        del kept.tokens[length:]
        needed = pages_for(length)
        self.pool.release(kept.pages[needed:])
        del kept.pages[needed:]

    def release(self, request_id: str) -> None:
        """Give a request up; nothing when it is not kept."""
        kept = self._kept.pop(request_id, None)
        if kept is not None:
            self.pool.release(kept.pages)

    def check_integrity(self) -> None:
        """Raise RuntimeError if the counts of pages disagree."""
        self.pool.check_integrity(kept.pages for kept in self._kept.values())

    def _found(self, token_ids: Sequence[int], salt: bytes) -> Kept:
        """The longest beginning of `token_ids` that lies in pages of others."""
        digests: list[bytes] = []
        extend_digests(digests, token_ids, PAGE_SIZE, len(token_ids) - 1, salt)
        pages = self.pool.longest_prefix(digests)
        self.pool.share(pages)
        return Kept(list(token_ids[: len(pages) * PAGE_SIZE]), pages, digests[: len(pages)], salt=salt)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Leading tokens that are the same in two states of one text, which differ near the end if at all.

    Equal windows of 256 tokens at the same place count as equal up to there. A mistake would cost acceptance, never
    exactness: drafts are judged by the laws they were drawn from, whatever text these followed.
    """
    length = min(len(a), len(b))
    same, distance = length, _WINDOW
    while same and list(a[max(0, same - _WINDOW) : same]) != list(b[max(0, same - _WINDOW) : same]):
        same, distance = max(0, length - distance), 2 * distance
    rest = zip(a[same:length], b[same:length], strict=True)
    return next((i for i, (x, y) in enumerate(rest, start=same) if x != y), length)
