"""`NumbaParallelEagle`: P-EAGLE heads on the CPU kernels: all levels of a chain in one causal pass (arXiv 2602.01469).

Below the last committed token stand rows of a mask token and a mask state, one per further level, whatever was drafted
above them. Level by level (`forward`) they come to the same numbers, since what a row hands to the one below is the
mask state. Not for the layers, which are EAGLE-3's (`autoregressive.py`).
"""

from dataclasses import replace

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.base import PAGE_SIZE, KVCache, Rows
from paceline.models.chains import GreedyDraft
from paceline.models.heads.nets import NetOutput
from paceline.models.numba_executor.heads.autoregressive import NumbaAutoregressiveNet
from paceline.models.numba_executor.heads.material import Material


class NumbaParallelEagle(NumbaAutoregressiveNet):
    """See `nets.AutoregressiveNet`; arguments as `NumbaAutoregressiveNet`.

    Raises:
        InvalidParameter: the head names no mask token.
    """

    def __init__(self, material: Material) -> None:
        super().__init__(material)
        mask = self.record.config.mask_token_id
        if mask is None:
            raise InvalidParameter("mask_token_id", "is missing from a p_eagle head", "get its complete config")
        self._mask_token = mask
        self._mask_state = self.project(material.tensors["mask_hidden"].reshape(1, -1))[0].copy()

    def forward(self, rows: Rows, hidden: np.ndarray, cache: KVCache) -> NetOutput:
        """See `nets.AutoregressiveNet.forward`; rows fed with the mask state count as masks, whatever their token."""
        masked = (hidden == self._mask_state).all(axis=1)
        tokens = np.where(masked, np.int32(self._mask_token), rows.token_ids)
        logits, _ = super().forward(replace(rows, token_ids=tokens), hidden, cache)
        return NetOutput(logits, np.broadcast_to(self._mask_state, hidden.shape))

    def draft_greedy(self, rows: Rows, hidden: np.ndarray, cache: KVCache, num_tokens: int) -> GreedyDraft:
        """See `NumbaAutoregressiveNet.draft_greedy`; the asked rows are the last of their segments."""
        masks, order = _with_masks(rows, num_tokens - 1)
        states = np.broadcast_to(self._mask_state, (len(order) - len(hidden), len(self._mask_state)))
        logits, _ = self.forward(masks, np.concatenate([hidden, states])[order], cache)
        logits = logits.reshape(-1, num_tokens, logits.shape[1])
        best, ids = logits.argmax(axis=2), self.record.draft_ids
        highest = logits.max(axis=2, keepdims=True)
        tokens = best if ids is None else ids[best]
        return GreedyDraft(tokens.astype(np.int32), 1 / np.exp(logits - highest).sum(axis=2))


def _with_masks(rows: Rows, count: int) -> tuple[Rows, np.ndarray]:
    """`rows` with `count` more after each asked one, all of these asked; and where each row comes from.

    That is a row's number in `rows`, or, for the added ones, counted on from there.
    """
    asked, num_rows = rows.logit_rows, len(rows.token_ids)
    positions = (rows.positions[asked][:, None] + np.arange(1, count + 1)).reshape(-1)
    segments = np.repeat(rows.segments[asked], count)
    order = np.argsort(np.concatenate([rows.segments, segments]), kind="stable")
    slots = rows.page_tables[segments, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE

    def joined(own: np.ndarray, added: np.ndarray) -> np.ndarray:
        return np.concatenate([own, added]).astype(np.int32)[order]

    is_asked = np.zeros(num_rows + len(positions), bool)
    is_asked[asked] = is_asked[num_rows:] = True
    return Rows(
        token_ids=joined(rows.token_ids, np.zeros(len(positions))),
        positions=joined(rows.positions, positions),
        slots=joined(rows.slots, slots),
        segments=joined(rows.segments, segments),
        page_tables=rows.page_tables,
        natural_lengths=joined(rows.natural_lengths, positions + 1),
        branch_slots=np.pad(rows.branch_slots, ((0, len(positions)), (0, 0)), constant_values=-1)[order],
        logit_rows=np.flatnonzero(is_asked[order]).astype(np.int32),
    ), order
