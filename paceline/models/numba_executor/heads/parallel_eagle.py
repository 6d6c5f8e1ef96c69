"""`NumbaParallelEagle`: P-EAGLE heads on the CPU kernels: all levels of a chain in one causal pass (arXiv 2602.01469).

The last committed token is followed by one row of mask token and mask state per further level, whatever was drafted.
Level by level (`forward`) the results are the same, since a row's child reads the mask state. Not for the layers, which
are EAGLE-3's (`autoregressive.py`).
"""

from dataclasses import replace

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.base import KVCache, Rows
from paceline.models.chains import ChainDraft
from paceline.models.heads.mask_rows import draft_masks
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
        """See `nets.AutoregressiveNet.forward`; rows whose input is the mask state are masks, whatever their token."""
        masked = (hidden == self._mask_state).all(axis=1)
        tokens = np.where(masked, np.int32(self._mask_token), rows.token_ids)
        logits, _ = super().forward(replace(rows, token_ids=tokens), hidden, cache)
        return NetOutput(logits, np.broadcast_to(self._mask_state, hidden.shape))

    def draft_chains(self, rows: Rows, hidden: np.ndarray, cache: KVCache, num_tokens: int) -> ChainDraft:
        """See `NumbaAutoregressiveNet.draft_chains`; the logit rows are the last of their segments."""
        return draft_masks(self.forward, self.record.draft_ids, self._mask_state, rows, hidden, cache, num_tokens)
