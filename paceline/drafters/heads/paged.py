"""What runners of heads with keys and values share: who sits in the cache."""

from collections.abc import Sequence

from paceline.drafters.draft_pages import DraftPages, Kept
from paceline.drafters.heads.hidden_states import HiddenStates
from paceline.drafters.trees.growth import Growth
from paceline.models.base import PAGE_SIZE, KVCache
from paceline.speculation.outcome import RequestOutcome


class PagedRunner:
    """Seats requests; see `draft_runner.Runner`.

    Args:
        states: the target's hidden states.
        cache: the head's keys and values.
        vocab_size: the target's.
        max_rows: most rows of one pass while a prompt is read.
    """

    def __init__(self, states: HiddenStates, cache: KVCache, vocab_size: int, max_rows: int = 512) -> None:
        self.states, self.cache, self.pages = states, cache, DraftPages(cache.num_pages)
        self._vocab_size, self._max_rows = vocab_size, max_rows
        self._most = cache.num_pages * PAGE_SIZE

    def can_hold(self, growth: Growth) -> bool:
        """Whether there is something to go on, and text and tree fit into the cache when it is empty."""
        num_tokens = len(growth.context.token_ids)
        return num_tokens > 1 and num_tokens + self.num_rows(growth) <= self._most

    def admit(self, growths: Sequence[Growth]) -> Sequence[Growth]:
        """The first of `growths` that find room together, at least one, their long prompts read but for the end."""
        ids = [growth.context.request_id for growth in growths]
        return growths[: self.pages.seat(ids, lambda place, victims: self._seat(growths[place], victims))]

    def observe(self, outcome: RequestOutcome) -> None:
        """Keep the rows of committed tokens; forget the draft."""
        kept = self.pages.get(outcome.request_id)
        if kept is not None and kept.row_tokens:
            self.pages.truncate(kept, len(kept.tokens))
        if outcome.finished:
            self.release(outcome.request_id)

    def release(self, request_id: str) -> None:
        """Forget a request."""
        self.pages.release(request_id)

    def num_rows(self, growth: Growth) -> int:
        """Most cache slots that a growth takes after the committed rows."""
        return growth.max_rows

    def key_of(self, token_ids: Sequence[int]) -> Sequence[int]:
        """What the key and value of each committed row follow from, with the rows before it."""
        raise NotImplementedError

    def read(self, growth: Growth, kept: Kept, last: int) -> None:
        """Run the committed rows up to `last`."""
        raise NotImplementedError

    def _seat(self, growth: Growth, victims: Sequence[str]) -> bool:
        """Make room for the request's rows and its tree, and read a long prompt's beginning; False: no room."""
        keys = self.key_of(growth.context.token_ids)
        kept = self.pages.recall(growth.context.request_id, keys, growth.context.salt)
        self.pages.share(kept)
        if not self.pages.extend(kept, len(keys) + 1 + self.num_rows(growth), victims):
            return False
        while len(keys) - len(kept.tokens) > self._max_rows:
            self.read(growth, kept, len(kept.tokens) + self._max_rows)
            self.pages.share(kept)
        return True


def keys_of_pairs(token_ids: Sequence[int], vocab_size: int) -> list[int]:
    """Keys of rows that hold the token after their own: row by row that token, with the first one's own before it."""
    return [token_ids[0] * vocab_size + token_ids[1], *token_ids[2:]] if len(token_ids) > 1 else []
