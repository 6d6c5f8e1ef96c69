"""`PagedRunner`: the base class of runners of heads with a KV cache; it manages the cache."""

from collections.abc import Sequence

from paceline.drafters.base import DraftContext
from paceline.drafters.heads.hidden_states import HiddenStates
from paceline.drafters.runners.draft_pages import DraftPages, Kept
from paceline.drafters.trees.growth import Growth
from paceline.models.base import PAGE_SIZE, KVCache
from paceline.models.heads.nets import DraftsAtOnce
from paceline.speculation.outcome import RequestOutcome


class PagedRunner:
    """Allocates cache pages for requests; see `growing.Runner`.

    Args:
        states: the target's hidden states.
        cache: the head's keys and values.
        vocab_size: of the target.
        max_rows: most rows of one prefill pass.

    Attributes:
        at_once: its net, where that drafts chains in one call.
        drafts_ahead: whether drafts are launched before they are asked for.
    """

    at_once: DraftsAtOnce | None = None
    drafts_ahead = False

    def __init__(self, states: HiddenStates, cache: KVCache, vocab_size: int, max_rows: int = 512) -> None:
        self.states, self.cache, self.pages = states, cache, DraftPages(cache.num_pages)
        self._vocab_size, self._max_rows = vocab_size, max_rows
        self._most = cache.num_pages * PAGE_SIZE

    @property
    def can_draw(self) -> bool:
        """See `ChainRunner`."""
        return self.at_once is not None and self.at_once.draws_chains

    def can_hold(self, growth: Growth) -> bool:
        """Whether the text has at least two tokens, and text and tree fit the target's context and an empty cache."""
        num_tokens = len(growth.context.token_ids)
        if num_tokens + growth.context.longest > self.states.max_positions:
            return False
        return num_tokens > 1 and num_tokens + self.num_rows(growth) <= self._most

    def admit(self, growths: Sequence[Growth]) -> Sequence[Growth]:
        """The leading ones of `growths` that fit into the cache together, at least one, with long prompts prefilled."""
        ids = [growth.context.request_id for growth in growths]
        return growths[: self.pages.seat(ids, lambda place, victims: self._seat(growths[place], victims))]

    def observe(self, outcome: RequestOutcome) -> None:
        """Drop the rows of the draft; those of committed tokens are kept."""
        kept = self.pages.get(outcome.request_id)
        if kept is not None and kept.row_tokens:
            self.pages.truncate(kept, len(kept.tokens))
        if outcome.finished:
            self.release(outcome.request_id)

    def read(self, context: DraftContext) -> int:
        """See `ReadingDrafter`; nothing is read where pages are missing, or of a text that is too long to draft for."""
        if max(context.num_prompt_tokens, len(context.token_ids)) >= min(self.states.max_positions, self._most):
            return 0
        keys = self.key_of(context.token_ids)
        kept = self.pages.recall(context.request_id, keys, context.salt)
        if len(kept.tokens) < len(keys) and self.pages.extend(kept, len(keys), ()):
            end = min(len(keys), len(kept.tokens) + max(self._max_rows, context.batch.num_prefill_rows))
            while len(kept.tokens) < end:
                self.compute(context, kept, min(end, len(kept.tokens) + self._max_rows))
            self.pages.share(kept)
        return len(kept.tokens)

    def release(self, request_id: str) -> None:
        """Forget a request."""
        self.pages.release(request_id)

    def num_rows(self, growth: Growth) -> int:
        """Largest number of cache slots that a growth needs after the committed rows."""
        return growth.max_rows

    def key_of(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Prefix-cache keys, one per committed row: what its keys and values depend on besides the rows before it."""
        raise NotImplementedError

    def compute(self, context: DraftContext, kept: Kept, last: int) -> None:
        """Compute the committed rows up to `last`."""
        raise NotImplementedError

    def _seat(self, growth: Growth, victims: Sequence[str]) -> bool:
        """Allocate pages for the request's rows and tree, and prefill all but the end of a long text; False if full."""
        keys = self.key_of(growth.context.token_ids)
        kept = self.pages.recall(growth.context.request_id, keys, growth.context.salt)
        self.pages.share(kept)
        most = len(keys) + 1 + self.num_rows(growth)
        if not self.pages.extend(kept, most, victims):
            return False
        if self.drafts_ahead:  # the next draft begins before its pages are asked for
            self.pages.extend(kept, most + self.num_rows(growth), ())
        while len(keys) - len(kept.tokens) > self._max_rows:
            self.compute(growth.context, kept, len(kept.tokens) + self._max_rows)
            self.pages.share(kept)
        return True


def keys_of_pairs(token_ids: Sequence[int], vocab_size: int) -> list[int]:
    """Prefix-cache keys of rows that also read the next token: that token; for the first row, a code of the pair."""
    return [token_ids[0] * vocab_size + token_ids[1], *token_ids[2:]] if len(token_ids) > 1 else []
