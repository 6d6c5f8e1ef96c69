"""SPIRe's feedback memory: its parameters in a draft's card, and its keys and values from the states of the layers.

Key and value of row s at layer l are those of

    m_s^l = |x_s^l| * sum over j of softmax(mix_l)_j x_s^j / |x_s^j|

with x^0 .. x^L the residual stream before, between and after the layers and |x| its root mean square. Any executor can
compute the states. Not for training `mix` (`torch_executor/feedback.py`, which also has the source of the equation),
nor for the cache of memory rows (`feedback_draft.py`).
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.errors import CorruptWeights, first_line
from paceline.models.architecture.rope import inverse_frequencies
from paceline.models.files.checkpoint import Checkpoint, LiesInFiles
from paceline.models.files.save_folder import CARD

KEY = "feedback"
"""Key of the memory's parameters in a draft's card."""
PASSES = 3
"""Passes over a text that is read at once, in training and for a prompt (`torch_executor/feedback.py` says why)."""
_AGAIN = "train the draft again with paceline train draft --sparse"
_TINY = np.finfo(np.float32).eps


@dataclass(frozen=True, slots=True)
class Sparse:
    """Sparse attention: a row attends to a sliding window and to attention sinks.

    Attributes:
        window: length of the window in rows, the row's own included.
        num_sinks: number of rows at the beginning of the text that every later row attends to.
    """

    window: int = 512
    num_sinks: int = 4


def has_memory(checkpoint: Checkpoint) -> bool:
    """Whether the card of a model describes a feedback memory."""
    try:
        _memory_of(checkpoint)
    except (OSError, KeyError, TypeError, ValueError):
        return False
    return True


def _memory_of(checkpoint: Checkpoint) -> Any:
    """What the card says of the memory. Raises FileNotFoundError without a card, KeyError for one without a memory."""
    if not isinstance(checkpoint, LiesInFiles):
        raise FileNotFoundError(CARD)
    return json.loads((checkpoint.path / CARD).read_text(encoding="utf-8"))[KEY]


def read_card(checkpoint: Checkpoint) -> tuple[Sparse, np.ndarray]:
    """The attention pattern and `mix` [layers, layers + 1] float32 in the ``paceline.json`` of a draft model.

    Raises:
        CorruptWeights: the file is missing, describes no memory, or does not fit the model.
    """
    try:
        values = _memory_of(checkpoint)
        sparse = Sparse(int(values["window"]), int(values["num_sinks"]))
        mix = np.asarray(values["mix"], np.float32).reshape(-1)
    except (OSError, KeyError, TypeError, ValueError, OverflowError) as error:
        place = checkpoint.path if isinstance(checkpoint, LiesInFiles) else "this draft"
        has_none = f"its {CARD} has none: {first_line(error)}"
        why = f"there is no {CARD} beside it" if isinstance(error, OSError) else has_none
        problem = f"SPIRe needs a draft model that was trained with a feedback memory, and this one was not ({why})"
        remedy = "make one with paceline train draft --sparse, or draft with this one by draft_model"
        raise CorruptWeights(f"{place}: {problem}; {remedy}") from None
    limit, size = checkpoint.config.max_position_embeddings, checkpoint.config.num_hidden_layers
    if not 0 < sparse.window <= limit or not 0 <= sparse.num_sinks <= limit:
        problem = f"feedback: a window of {sparse.window} tokens and {sparse.num_sinks} sinks"
        raise CorruptWeights(f"{problem} do not fit the model's {limit} positions; {_AGAIN}")
    if len(mix) != size * (size + 1) or not np.isfinite(mix).all():
        problem = f"feedback: mix has {len(mix)} numbers, the layers ask for {size * (size + 1)} finite ones"
        raise CorruptWeights(f"{problem}; {_AGAIN}")
    return sparse, mix.reshape(size, size + 1)


class FeedbackWeights:
    """Computes a memory's keys and values with the input norms and the key and value projections of L layers.

    Args:
        checkpoint: the draft model.
        mix: [L, L + 1], see the equation above.
    """

    def __init__(self, checkpoint: Checkpoint, mix: np.ndarray) -> None:
        config, layers = checkpoint.config, range(checkpoint.config.num_hidden_layers)
        self._num_heads, self._size, self._eps = config.num_key_value_heads, config.head_dim, config.norm_eps
        raised = np.exp(mix - mix.max(axis=1, keepdims=True))
        self._shares = raised / raised.sum(axis=1, keepdims=True)

        def stacked(name: str) -> np.ndarray:
            return np.stack([checkpoint.tensor(f"model.layers.{i}.{name}").astype(np.float32) for i in layers])

        def both(name: str) -> np.ndarray:
            return np.concatenate([stacked(f"self_attn.{part}_proj.{name}") for part in "kv"], axis=1)

        self._norm, self._products = stacked("input_layernorm.weight"), both("weight").swapaxes(1, 2)
        self._bias = both("bias")[:, None] if config.attention_bias else np.float32(0)
        self._key_norm = stacked("self_attn.k_norm.weight")[:, None, None] if config.qk_norm else None
        self._frequencies = inverse_frequencies(config.rope_theta, self._size, config.rope_inv_freq_scale)

    def keys_values(self, states: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rotated keys and values, each [L, n, key heads, head_dim], of n rows.

        Args:
            states: [L + 1, n, hidden] float32, the residual stream before, between and after the layers.
            positions: [n] positions of the rows in their texts.
        """
        lengths = np.sqrt(np.square(states).mean(axis=-1, keepdims=True) + _TINY)
        mixed = np.tensordot(self._shares, states / lengths, 1) * lengths[:-1]
        entered = _normed(mixed, self._norm[:, None], self._eps)
        both = (entered @ self._products + self._bias).reshape(len(mixed), len(positions), 2, self._num_heads, -1)
        keys, values = both[:, :, 0], both[:, :, 1]
        if self._key_norm is not None:
            keys = _normed(keys, self._key_norm, self._eps)
        return self._rotated(keys, positions), values

    def _rotated(self, keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
        angles = np.multiply.outer(positions, self._frequencies)[:, None]
        cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        first, second = np.split(keys, 2, axis=-1)
        return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)


def _normed(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(eps)) * weight
