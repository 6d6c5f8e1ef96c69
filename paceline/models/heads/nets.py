"""What a draft head computes, in three shapes; executors implement them, `drafters/heads/` draws with them.

Logits are over the head's own vocabulary (`HeadRecord.draft_ids`). All arrays are float32 unless said; results hold
until the next call of the same net. Nothing here knows of requests, trees or randomness.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from paceline.models.base import KVCache, Rows
from paceline.models.heads.record import HeadRecord


class NetOutput(NamedTuple):
    """Logits [K, draft vocab] of the asked rows, and hidden states [M, hidden] of all rows."""

    logits: np.ndarray
    hidden: np.ndarray


class AutoregressiveNet(Protocol):
    """EAGLE-1, 2, 3, 3.1, HASS, MTP, P-EAGLE: one pass per drafted level, with keys and values of its own.

    The row of position p holds the token at p + 1 and the target's hidden state at p; below drafted tokens the net's
    own hidden state takes the place of the target's. P-EAGLE hands on a mask's, whatever was drafted, and its greedy
    chains take one pass (`mask_rows.py`).
    """

    record: HeadRecord

    def new_cache(self, num_pages: int) -> KVCache:
        """An empty cache for its layers."""
        ...

    def project(self, taps: np.ndarray) -> np.ndarray:
        """[n, hidden] what a row is fed, from the target's hidden states [n, taps * target hidden]."""
        ...

    def forward(self, rows: Rows, hidden: np.ndarray, cache: KVCache) -> NetOutput:
        """One pass over `rows`, fed `hidden` [M, hidden]; the hidden states returned are what children are fed."""
        ...


class BlockOfRows(NamedTuple):
    """k rows that see each other: their cache slots [k] and positions [k], and all slots [m] that they see."""

    slots: np.ndarray
    positions: np.ndarray
    visible: np.ndarray


class HalfAutoregressiveNet(Protocol):
    """Falcon: one pass per k drafted levels, with keys, values and a recurrent state of its own.

    The row of position p holds the token at p + 1 and the target's hidden state at p; below drafted tokens the net's
    own outputs take the place of the target's. A row's output is k places ahead of it: the last k rows of a text name
    the next k tokens, each from its own law, whatever the others of the block turn out to be.
    """

    record: HeadRecord

    def new_cache(self, num_pages: int) -> KVCache:
        """An empty cache."""
        ...

    def project(self, taps: np.ndarray) -> np.ndarray:
        """[n, hidden] what a row is fed, from the target's hidden states [n, taps * target hidden]."""
        ...

    def extend(self, tokens: np.ndarray, hidden: np.ndarray, positions: np.ndarray, slots: np.ndarray,
               before: np.ndarray, cache: KVCache) -> None:  # fmt: skip
        """Write keys, values and states of n rows.

        Args:
            tokens, hidden: [n], [n, hidden] what they hold and are fed.
            positions, slots: [n] each.
            before: [n] slot of the row before each, an earlier one of this call or of another; -1 for a text's first.
        """
        ...

    def draft(self, blocks: Sequence[BlockOfRows], cache: KVCache) -> NetOutput:
        """Logits [rows, draft vocab] and outputs [rows, hidden] of the rows of all `blocks`, which `extend` has run."""
        ...


class BlockNet(Protocol):
    """DFlash, DSpark: all levels in one pass over an anchor token and masks, beside keys and values made from taps.

    Rows of a block carry `num_keys` = context + block, so that each attends to the whole block.
    """

    record: HeadRecord

    def new_cache(self, num_pages: int) -> KVCache:
        """An empty cache for its layers."""
        ...

    def inject(self, taps: np.ndarray, positions: np.ndarray, slots: np.ndarray, cache: KVCache) -> None:
        """Write the keys and values of committed tokens at `positions` [n] to `slots` [n].

        Args:
            taps: [n, taps * target hidden].
        """
        ...

    def forward(self, rows: Rows, cache: KVCache) -> NetOutput:
        """One pass over the rows of blocks."""
        ...

    def bias(self, tokens: np.ndarray) -> np.ndarray:
        """[n, draft vocab] added to the logits below drafted `tokens` [n] (target ids); zeros without a Markov head."""
        ...

    def confidence(self, hidden: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """[n] probability that the next token stands, from the hidden states [n, hidden] of its places and the tokens
        [n] before them; ones where the net has no such output."""
        ...


class StepNet(Protocol):
    """Medusa, Hydra, MLP speculator, blockwise heads: no attention, a small network per level."""

    record: HeadRecord

    def begin(self, hidden: np.ndarray) -> np.ndarray:
        """[n, state] from the target's hidden states [n, taps * target hidden] at the token before the last one."""
        ...

    def step(self, level: int, states: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits [n, draft vocab] of level `level` (0 is the first drafted token), and the states [n, state] below.

        Args:
            tokens: [n] the token above each: the last committed one at level 0, drafted ones below.
        """
        ...
