"""Interfaces of the networks of draft heads; executors implement them, `drafters/heads/` drafts with them.

Logits are over the head's own vocabulary (`HeadRecord.draft_ids`). Arrays are float32 unless stated otherwise; results
are valid until the next call of the same net. Nets beside a target on a device also take and return `States` that stay
there. Nothing here knows of requests, trees or randomness.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from paceline.models.base import KVCache, Rows
from paceline.models.chains import ChainDraft
from paceline.models.heads.record import HeadRecord
from paceline.models.states import States


class NetOutput(NamedTuple):
    """Logits [K, draft vocab] of the logit rows, and hidden states [M, hidden] of all rows."""

    logits: np.ndarray
    hidden: np.ndarray


@runtime_checkable
class AutoregressiveNet(Protocol):
    """EAGLE-1, 2, 3, 3.1, HASS, MTP, P-EAGLE: one pass per drafted level, with a KV cache of its own.

    The row of position p reads the token at p + 1 and the target's hidden state at p; rows of drafted tokens read the
    net's own hidden state of their parent instead. P-EAGLE returns the state of a mask for any row, so that its greedy
    chains take one pass (`mask_rows.py`).
    """

    record: HeadRecord

    def new_cache(self, num_pages: int) -> KVCache:
        """An empty cache for its layers."""
        ...

    def project(self, taps: States) -> States:
        """[n, hidden] what a row is fed, from the target's hidden states [n, taps * target hidden]."""
        ...

    def forward(self, rows: Rows, hidden: States, cache: KVCache) -> NetOutput:
        """One pass over `rows` with input states `hidden` [M, hidden]; it returns the input states of children."""
        ...


class BlockOfRows(NamedTuple):
    """k rows that attend to each other: cache slots [k], positions [k], and all slots [m] that they attend to."""

    slots: np.ndarray
    positions: np.ndarray
    visible: np.ndarray


@runtime_checkable
class HalfAutoregressiveNet(Protocol):
    """Falcon: one pass per k drafted levels, with a KV cache and a recurrent state of its own.

    The row of position p reads the token at p + 1 and the target's hidden state at p; rows of drafted tokens read the
    net's own outputs instead. A row predicts the token k positions ahead of it: the last k rows of a text predict the
    next k tokens, independently of each other.
    """

    record: HeadRecord

    def new_cache(self, num_pages: int) -> KVCache:
        """An empty cache."""
        ...

    def project(self, taps: States) -> States:
        """[n, hidden] what a row is fed, from the target's hidden states [n, taps * target hidden]."""
        ...

    def extend(self, tokens: np.ndarray, hidden: States, positions: np.ndarray, slots: np.ndarray,
               before: np.ndarray, cache: KVCache) -> None:  # fmt: skip
        """Write keys, values and recurrent states of n rows.

        Args:
            tokens, hidden: [n] tokens and [n, hidden] input states of the rows.
            positions, slots: [n] each.
            before: [n] slot of each row's predecessor, a row of an earlier call or earlier in this one; -1 for the
                first row of a text.
        """
        ...

    def draft(self, blocks: Sequence[BlockOfRows], cache: KVCache) -> NetOutput:
        """Logits [rows, draft vocab] and outputs [rows, hidden] of the rows of `blocks`; `extend` must come first."""
        ...


@runtime_checkable
class BlockNet(Protocol):
    """DFlash, DSpark: all levels in one pass over an anchor token and masks, with context keys computed from taps.

    Rows of a block have `num_keys` = context + block, so that each attends to the whole block.
    """

    record: HeadRecord

    def new_cache(self, num_pages: int) -> KVCache:
        """An empty cache for its layers."""
        ...

    def inject(self, taps: States, positions: np.ndarray, slots: np.ndarray, cache: KVCache) -> None:
        """Write the keys and values of committed tokens at `positions` [n] to `slots` [n].

        Args:
            taps: [n, taps * target hidden].
        """
        ...

    def forward(self, rows: Rows, cache: KVCache) -> NetOutput:
        """One pass over the rows of blocks."""
        ...

    def bias(self, tokens: np.ndarray) -> np.ndarray:
        """Logit bias [n, draft vocab] after drafted `tokens` [n] (target ids); zeros without a Markov head."""
        ...

    def confidence(self, hidden: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """[n] probabilities that drafted tokens are accepted, from the hidden states [n, hidden] of their positions and
        the tokens [n] before them; ones where the net has no confidence output."""
        ...


@runtime_checkable
class StepNet(Protocol):
    """Medusa, Hydra, MLP speculator, blockwise heads: no attention, a small network per level."""

    record: HeadRecord

    def begin(self, hidden: States) -> States:
        """Initial states [n, state], from the target's taps [n, taps * target hidden] at the token before the last."""
        ...

    def step(self, level: int, states: States, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits [n, draft vocab] of level `level` (0 is the first drafted token), and states [n, state] of the next.

        Args:
            tokens: [n] previous tokens: the last committed one at level 0, drafted ones at the others.
        """
        ...


@runtime_checkable
class DraftsAtOnce(Protocol):
    """A net of any shape that drafts chains in one call.

    Attributes:
        draft_chains: see `models.chains.DraftsChains`, with the arguments of the net's shape.
        draws_chains: whether it takes `Draws`; else its chains are greedy.
        verifies_early: whether the target may verify a draft before the host knows it.
    """

    draft_chains: Callable[..., ChainDraft]
    draws_chains: bool
    verifies_early: bool


HeadNet = AutoregressiveNet | HalfAutoregressiveNet | BlockNet | StepNet
"""A network of any shape. Which one is told by its methods (`isinstance`): no two shapes have the same."""
