"""`PredictionNet`: a target's own layer for multi-token prediction, run by the target's executor (DeepSeek-AI 2024,
section 2.2).

    x = fc [norm(embedding of the token at p + 1), norm(hidden state at p)];  then a layer of the target's own form
    logits = the target's head times the output after the layer's final norm, which child rows read as hidden state

`head_in` finds such a layer in the target's files. Those of other files, with layers of Llama's form, are read by
`layouts/mtp.py`. Not for training one.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from paceline.models.architecture.config import ModelConfig
from paceline.models.base import NORMED, PAGE_SIZE, ForwardOutput, KVCache, Rows
from paceline.models.chains import ChainDraft
from paceline.models.files.checkpoint import ENTRANCE, Predicts
from paceline.models.heads.fingerprint import target_print
from paceline.models.heads.nets import NetOutput
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.resolve import ModelSource
from paceline.models.states import States

Entrance = Callable[[np.ndarray, States], Any]
"""From tokens [n] and hidden states [n, hidden] to what the layer is given [n, hidden], where the layer runs."""
_STEPS = 2
"""Tokens to draft at first. The layer is trained to predict one; those after it are predicted from its own states."""


def has_layer(target: ModelSource) -> bool:
    """Whether `head_in` finds a head. Raises as it does."""
    return isinstance(target.checkpoint, Predicts) and target.checkpoint.prediction_layer() is not None


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


class Layer(Protocol):
    """A model of one layer that is given its input."""

    @property
    def config(self) -> ModelConfig:
        """See `CausalLM.config`."""
        ...

    def new_cache(self, num_pages: int) -> KVCache:
        """See `CausalLM.new_cache`."""
        ...

    def forward_from(self, inputs: Any, rows: Rows, cache: KVCache, taps: tuple[int, ...] = ()) -> ForwardOutput:
        """As `CausalLM.forward`, with `inputs` [M, hidden] of an `Entrance` in the place of embeddings."""
        ...


class PredictionNet:
    """See `nets.AutoregressiveNet`.

    Args:
        record: of `head_in`.
        layer: its layer, with the target's output head.
        entrance: makes what the layer is given.
    """

    draws_chains = verifies_early = False

    def __init__(self, record: HeadRecord, layer: Layer, entrance: Entrance) -> None:
        self.record, self._layer, self._entrance = record, layer, entrance

    @property
    def config(self) -> ModelConfig:
        """The architecture of its layer."""
        return self._layer.config

    def new_cache(self, num_pages: int) -> KVCache:
        """See `nets.AutoregressiveNet.new_cache`."""
        return self._layer.new_cache(num_pages)

    def project(self, taps: States) -> States:
        """See `nets.AutoregressiveNet.project`: the hidden state as it is."""
        return taps

    def forward(self, rows: Rows, hidden: States, cache: KVCache) -> NetOutput:
        """See `nets.AutoregressiveNet.forward`."""
        found = self._pass(rows, hidden, cache)
        return NetOutput(found.logits, found.taps[NORMED])

    def draft_chains(self, rows: Rows, hidden: States, cache: KVCache, num_tokens: int) -> ChainDraft:
        """A greedy chain after each logit row; arguments as of `DraftsChains.draft_chains` and `forward`."""
        found, asked = self._pass(rows, hidden, cache), rows.logit_rows
        states, levels = found.taps[NORMED][asked], [_likeliest(found)]
        for level in range(1, num_tokens):
            following = _following(rows, levels[-1][0], level)
            found = self._pass(following, states, cache)
            states = found.taps[NORMED]
            levels.append(_likeliest(found))
        tokens, probs = (np.stack(each, axis=1) for each in zip(*levels, strict=True))
        return ChainDraft(tokens, probs)

    def _pass(self, rows: Rows, hidden: States, cache: KVCache) -> ForwardOutput:
        return self._layer.forward_from(self._entrance(rows.token_ids, hidden), rows, cache, (NORMED,))


def _likeliest(found: ForwardOutput) -> tuple[np.ndarray, np.ndarray]:
    """The most probable tokens [K] int32, the lowest id on ties, and their probabilities [K] float32."""
    tokens = found.logits.argmax(axis=1) if found.peaks is None else np.asarray(found.peaks)
    largest = found.logits[np.arange(len(tokens)), tokens]
    return tokens.astype(np.int32), 1 / np.exp(found.logits - largest[:, None]).sum(axis=1)


def _following(rows: Rows, tokens: np.ndarray, level: int) -> Rows:
    """Rows of `tokens` [K], `level` places after each logit row, which are their own logit rows."""
    tables, positions = rows.page_tables[rows.segments[rows.logit_rows]], rows.positions[rows.logit_rows] + level
    numbers = np.arange(len(tokens), dtype=np.int32)
    slots = tables[numbers, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
    aside = np.empty((len(tokens), 0), np.int32)
    return Rows(tokens, positions, slots, numbers, tables, positions + np.int32(1), aside, numbers)
