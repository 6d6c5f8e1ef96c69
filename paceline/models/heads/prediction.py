"""`PredictionNet`: a target's own layer for multi-token prediction, run by the target's executor (DeepSeek-AI 2024,
section 2.2).

    x = fc [norm(embedding of the token at p + 1), norm(hidden state at p)];  then a layer of the target's own form
    logits = the target's head times the output after the layer's final norm, which is also the input state of child rows

`head_in` finds such a layer in the target's files. Those of other files, with layers of Llama's form, are read by
`layouts/mtp.py`. Not for training one.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from paceline.models.base import NORMED, CausalLM, ForwardOutput, KVCache, Rows, TakesInputs
from paceline.models.files.checkpoint import ENTRANCE, Predicts
from paceline.models.heads.fingerprint import target_print
from paceline.models.heads.nets import NetOutput
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.resolve import ModelSource

Entrance = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From tokens [n] and hidden states [n, hidden] to what the layer is given [n, hidden]."""
_STEPS = 2
"""Tokens to draft at first. The layer is trained to predict one; those after it are predicted from its own states."""


def head_in(target: ModelSource) -> HeadRecord | None:
    """The head that is a layer in the files of `target`; None where there is none.

    Raises:
        CorruptWeights: tensors of the layer are missing or damaged.
    """
    layer = target.checkpoint.prediction_layer() if isinstance(target.checkpoint, Predicts) else None
    if layer is None:
        return None
    config = HeadConfig(
        family="mtp", target=target_print(target), taps=(NORMED,), num_layers=1, num_steps=_STEPS,
        draft_vocab_size=layer.config.vocab_size, norm_output=True,
        max_positions=layer.config.max_position_embeddings,
    )  # fmt: skip
    return HeadRecord(config, {name: layer.tensor(name) for name in ENTRANCE}, layer=layer)


class Layer(CausalLM, TakesInputs, Protocol):
    """A model of one layer whose first input can be given."""


class PredictionNet:
    """See `nets.AutoregressiveNet`.

    Args:
        record: of `head_in`.
        layer: its layer, with the target's output head.
        entrance: makes what the layer is given.
    """

    def __init__(self, record: HeadRecord, layer: Layer, entrance: Entrance) -> None:
        self.record, self._layer, self._entrance = record, layer, entrance

    def new_cache(self, num_pages: int) -> KVCache:
        """See `nets.AutoregressiveNet.new_cache`."""
        return self._layer.new_cache(num_pages)

    def project(self, taps: np.ndarray) -> np.ndarray:
        """See `nets.AutoregressiveNet.project`: the hidden state as it is."""
        return taps

    def forward(self, rows: Rows, hidden: np.ndarray, cache: KVCache) -> NetOutput:
        """See `nets.AutoregressiveNet.forward`."""
        found = self._pass(rows, hidden, cache)
        return NetOutput(found.logits, found.taps[NORMED])

    def _pass(self, rows: Rows, hidden: np.ndarray, cache: KVCache) -> ForwardOutput:
        return self._layer.forward_from(self._entrance(rows.token_ids, hidden), rows, cache, (NORMED,))
