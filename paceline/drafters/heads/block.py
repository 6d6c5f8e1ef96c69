"""`BlockRunner`: heads that draft a whole block in one pass (DFlash, DSpark).

The block is the last committed token, called the anchor, followed by mask tokens. It attends bidirectionally to itself
and to keys and values computed from the target's hidden states alone, so the prompt costs one small matrix product per
token. A Markov head adds a bias to the logits of a position that depends on the token before it. Not for trees or
arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.heads.hidden_states import HiddenStates
from paceline.drafters.heads.paged import PagedRunner
from paceline.drafters.runners.draft_pages import Kept
from paceline.drafters.trees.growth import Growth
from paceline.models.base import Rows, slot_of
from paceline.models.chains import ChainDraft, Draws
from paceline.models.heads.nets import BlockNet, DraftsAtOnce
from paceline.models.rows import Part, build_rows
from paceline.sampling.randomness import ROOT


@dataclass(frozen=True, eq=False, slots=True)
class _Block:
    """Logits [levels, draft vocab] of one request's block, before the Markov bias."""

    logits: np.ndarray


class BlockRunner(PagedRunner):
    """Scores growing trees with `net`; other arguments as `PagedRunner`."""

    def __init__(self, net: BlockNet, states: HiddenStates, num_pages: int, vocab_size: int) -> None:
        super().__init__(states, net.new_cache(num_pages), vocab_size)
        self._net, config = net, net.record.config
        self.at_once = net if isinstance(net, DraftsAtOnce) else None
        self._first_place = 0 if config.sample_from_anchor else 1
        self._size = config.num_steps + self._first_place
        self._mask = config.mask_token_id or 0
        self._blocks: dict[str, _Block] = {}

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]:
        """For each admitted growth the logits [len(nodes), draft vocab] after its `nodes`; only roots need a pass."""
        self._run([growth for growth, nodes in work if nodes[0] == ROOT])
        return [self._below(growth, nodes) for growth, nodes in work]

    def draft_chains(self, growths: Sequence[Growth], num_tokens: int, draws: Draws | None = None) -> ChainDraft:
        """See `ChainRunner`; only where the net drafts `at_once`."""
        assert self.at_once is not None
        rows = _two_way(build_rows([self._part(growth) for growth in growths]), self._size)
        places = self._first_place + np.arange(num_tokens) + self._size * np.arange(len(growths))[:, None]
        rows = replace(rows, logit_rows=places.reshape(-1).astype(np.int32))
        drawn = () if draws is None else (draws,)
        return self.at_once.draft_chains(rows, self.cache, *drawn)

    def release(self, request_id: str) -> None:
        super().release(request_id)
        self._blocks.pop(request_id, None)

    def num_rows(self, growth: Growth) -> int:
        """The size of the block, whatever the size of the tree."""
        return self._size

    def key_of(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Prefix-cache keys: all tokens but the last, whose hidden state comes with the next step."""
        return token_ids[:-1]

    def compute(self, context: DraftContext, kept: Kept, last: int) -> None:
        """Inject the target's states of committed tokens up to `last`."""
        start = len(kept.tokens)
        positions = np.arange(start, last, dtype=np.int32)
        states = self.states.take(context, start, last)
        slots = slot_of(np.asarray(kept.pages), positions).astype(np.int32)
        self._net.inject(states, positions, slots, self.cache)
        kept.tokens += context.token_ids[start:last]

    def _run(self, growths: Sequence[Growth]) -> None:
        """Compute the blocks of `growths` in one pass."""
        if not growths:
            return
        parts = [self._part(growth) for growth in growths]
        logits, _ = self._net.forward(_two_way(build_rows(parts), self._size), self.cache)
        for growth, own in zip(growths, np.split(logits.copy(), len(growths)), strict=True):
            self._blocks[growth.context.request_id] = _Block(own[self._first_place :])

    def _part(self, growth: Growth) -> Part:
        """The rows of the block; keys and values of new committed tokens are written first."""
        kept, token_ids = self.pages[growth.context.request_id], growth.context.token_ids
        last = len(token_ids) - 1
        self.compute(growth.context, kept, last)
        return Part(kept.pages, last, [token_ids[-1], *[self._mask] * (self._size - 1)])

    def _below(self, growth: Growth, nodes: Sequence[int]) -> np.ndarray:
        block, token_ids = self._blocks[growth.context.request_id], growth.context.token_ids
        levels = [0 if node == ROOT else _level(growth, node) for node in nodes]
        before = [token_ids[-1] if node == ROOT else growth.tokens[node] for node in nodes]
        return block.logits[levels] + self._net.bias(np.asarray(before, np.int32))


def _level(growth: Growth, node: int) -> int:
    """Depth of `node`; 0 for the root."""
    level = 0
    while node != ROOT:
        node, level = growth.parents[node], level + 1
    return level


def _two_way(rows: Rows, size: int) -> Rows:
    """`rows` of whole blocks of `size` rows, with attention to the whole block."""
    ends = rows.positions.reshape(-1, size)[:, -1:] + 1
    lengths = np.broadcast_to(ends, (len(ends), size)).reshape(-1).astype(np.int32)
    return replace(rows, natural_lengths=lengths, num_keys=lengths)
