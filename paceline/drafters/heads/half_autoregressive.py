"""`HalfAutoregressiveRunner`: heads that draft k tokens in a pass (Falcon, Gao et al. 2024).

The last k rows of the text form a block whose pass gives the laws of the next k levels. All nodes of a level share one
law, since the positions of a block do not see each other's drafted tokens. At the end of a block, the last k tokens of
the path, with the block's outputs as their hidden states, form the next block. Rows of committed tokens are recomputed
with the target's true states, as for all heads with a KV cache. Not for trees or arithmetic.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.heads.hidden_states import HiddenStates
from paceline.drafters.heads.paged import PagedRunner, keys_of_pairs
from paceline.drafters.runners.draft_pages import Kept
from paceline.drafters.trees.growth import Growth
from paceline.models.base import slot_of
from paceline.models.heads.nets import BlockOfRows, HalfAutoregressiveNet
from paceline.sampling.randomness import ROOT


class _Run(NamedTuple):
    """Rows to compute: the arguments of `HalfAutoregressiveNet.extend`."""

    tokens: np.ndarray
    hidden: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    before: np.ndarray


class _Drafted(NamedTuple):
    """A computed block: logits [k, draft vocab] of the next k levels, outputs [k, hidden], slots of drafted rows so
    far."""

    logits: np.ndarray
    hidden: np.ndarray
    slots: Sequence[int]


class HalfAutoregressiveRunner(PagedRunner):
    """Scores growing trees with `net`; other arguments as `PagedRunner`."""

    def __init__(self, net: HalfAutoregressiveNet, states: HiddenStates, num_pages: int, vocab_size: int) -> None:
        super().__init__(states, net.new_cache(num_pages), vocab_size)
        self._half = net
        self._size = net.record.config.block_tokens
        self._drafted: dict[str, dict[int, _Drafted]] = {}

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]:
        """For each admitted growth the logits [len(nodes), draft vocab] after `nodes`; only block ends need a pass."""
        ends = [(growth, node) for growth, nodes in work for node in nodes if self._place(growth, node) == 0]
        self._run(ends)
        return [np.stack([self._logits_below(growth, node) for node in nodes]) for growth, nodes in work]

    def can_hold(self, growth: Growth) -> bool:
        """Whether the text is longer than a block, and text and tree fit into an empty cache."""
        return len(growth.context.token_ids) > self._size and super().can_hold(growth)

    def num_rows(self, growth: Growth) -> int:
        """k rows for every block that may be needed."""
        return self._size * growth.max_rows

    def release(self, request_id: str) -> None:
        super().release(request_id)
        self._drafted.pop(request_id, None)

    def key_of(self, token_ids: Sequence[int]) -> Sequence[int]:
        """As `AutoregressiveRunner.key_of`; the LSTM's state is a function of the rows before."""
        return keys_of_pairs(token_ids, self._vocab_size)

    def compute(self, context: DraftContext, kept: Kept, last: int) -> None:
        """Compute committed rows up to `last` without logits."""
        self._half.extend(*self._committed_rows(context, kept, last), self.cache)

    def _run(self, ends: Sequence[tuple[Growth, int]]) -> None:
        """Compute the blocks that end at these nodes, in one pass."""
        if not ends:
            return
        made = [self._root_block(growth) if node == ROOT else self._node_block(growth, node) for growth, node in ends]
        rows = _Run(*(np.concatenate(parts) for parts in zip(*(run for run, _ in made), strict=True)))
        self._half.extend(*rows, self.cache)
        logits, hidden = self._half.draft([block for _, block in made], self.cache)
        for number, ((growth, node), (_, block)) in enumerate(zip(ends, made, strict=True)):
            own = slice(number * self._size, (number + 1) * self._size)
            drafted = [] if node == ROOT else [*self._above(growth, node).slots, *block.slots]
            found = _Drafted(logits[own].copy(), hidden[own].copy(), drafted)
            self._drafted.setdefault(growth.context.request_id, {})[node] = found

    def _root_block(self, growth: Growth) -> tuple[_Run, BlockOfRows]:
        """(committed rows not in the cache yet, the block of the last k committed rows)."""
        kept, last = self.pages[growth.context.request_id], len(growth.context.token_ids) - 1
        self._drafted[growth.context.request_id] = {}
        run = self._committed_rows(growth.context, kept, last)
        slots = slot_of(np.asarray(kept.pages), np.arange(last))
        return run, BlockOfRows(slots[-self._size :], np.arange(last - self._size, last), slots)

    def _node_block(self, growth: Growth, node: int) -> tuple[_Run, BlockOfRows]:
        """(rows to compute, block) of the last k tokens of the path to `node`, following its parent block."""
        kept, above = self.pages[growth.context.request_id], self._above(growth, node)
        tokens, committed = _path(growth, node)[-self._size :], len(kept.tokens)
        first = committed + len(kept.row_tokens)
        slots = slot_of(np.asarray(kept.pages), np.arange(first, first + self._size))
        kept.row_tokens += tokens
        seen = slot_of(np.asarray(kept.pages), np.arange(committed))
        visible = np.concatenate([seen, np.asarray(above.slots, int), slots]).astype(int)
        positions = committed + len(above.slots) + np.arange(self._size)
        before = np.concatenate([visible[-self._size - 1 : -self._size], slots[:-1]])
        run = _Run(np.asarray(tokens, np.int32), above.hidden, positions, slots, before)
        return run, BlockOfRows(slots, positions, visible)

    def _committed_rows(self, context: DraftContext, kept: Kept, last: int) -> _Run:
        """Rows from the end of the cache to `last` - 1 with the target's states; recorded as cached."""
        start = len(kept.tokens)
        following = context.token_ids[start + 1 : last + 1]
        kept.tokens += following if start else self.key_of(context.token_ids[: last + 1])
        positions = np.arange(start, last)
        slots = slot_of(np.asarray(kept.pages), np.arange(max(start - 1, 0), last))
        before = slots[:-1] if start else np.concatenate([[-1], slots[:-1]])
        fed = np.array(self._half.project(self.states.take(context, start, last)))
        return _Run(np.asarray(following, np.int32), fed, positions, slots[-len(positions) :], before)

    def _logits_below(self, growth: Growth, node: int) -> np.ndarray:
        """Logits [draft vocab] after `node`, from its position in its block."""
        drafted, place = self._drafted[growth.context.request_id], self._place(growth, node)
        return drafted[node].logits[0] if place == 0 else self._above(growth, node).logits[place]

    def _above(self, growth: Growth, node: int) -> _Drafted:
        """The block that `node` was drafted from."""
        drafted = self._drafted[growth.context.request_id]
        end = growth.parents[node]
        while end not in drafted:
            end = growth.parents[end]
        return drafted[end]

    def _place(self, growth: Growth, node: int) -> int:
        """Levels from the end of the last block down to `node`; 0 where a block ends at `node`."""
        return 0 if node == ROOT else len(_path(growth, node)) % self._size


def _path(growth: Growth, node: int) -> list[int]:
    """Tokens from the root's child down to `node`."""
    path: list[int] = []
    while node != ROOT:
        path.append(growth.tokens[node])
        node = growth.parents[node]
    return path[::-1]
