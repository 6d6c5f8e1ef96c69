"""SPIRe's feedback memory in numbers: what a draft's card says of it, and keys and values made of layers' states.

Key and value of row s at layer l are those of

    m_s^l = |x_s^l| * sum over j of softmax(mix_l)_j x_s^j / |x_s^j|

with x^0 .. x^L the residual stream before, between and after the layers and |x| its root mean square. Any executor
makes the states. The network that learns `mix`, and where the equation is from: `torch_executor/feedback.py`; who keeps
which rows: `feedback_draft.py`.
"""

import json
from dataclasses import dataclass

import numpy as np

from paceline.errors import CorruptWeights, first_line
from paceline.models.checkpoint import Checkpoint
from paceline.models.rope import inverse_frequencies
from paceline.models.save_folder import CARD

KEY = "feedback"
"""What of a draft's card says how it attends."""
PASSES = 3
"""Over a text that is read at once, in training and when a prompt is read (`torch_executor/feedback.py` says why)."""
_TINY = np.finfo(np.float32).eps


@dataclass(frozen=True, slots=True)
class Sparse:
    """What a row may see of the rows before it.

    Attributes:
        window: those less than so many places before.
        num_sinks: the first ones of the text.
    """

    window: int = 512
    num_sinks: int = 4


def has_memory(checkpoint: Checkpoint) -> bool:
    """Whether the card beside a model says that it drafts with a feedback memory."""
    try:
        return KEY in json.loads((checkpoint.path / CARD).read_text(encoding="utf-8"))  # type: ignore[attr-defined]
    except (AttributeError, OSError, TypeError, ValueError):
        return False


def read_card(checkpoint: Checkpoint) -> tuple[Sparse, np.ndarray]:
    """What the ``paceline.json`` beside a draft's weights says: who sees whom, and `mix` [layers, layers + 1] float32.

    Raises:
        CorruptWeights: there is none, it says nothing of a memory, or what does not fit the layers.
    """
    try:
        values = json.loads((checkpoint.path / CARD).read_text(encoding="utf-8"))[KEY]  # type: ignore[attr-defined]
        sparse = Sparse(int(values["window"]), int(values["num_sinks"]))
        mix = np.asarray(values["mix"], np.float32).reshape(-1)
    except (AttributeError, OSError, KeyError, TypeError, ValueError, OverflowError) as error:
        problem = f"no {CARD} beside it describes a feedback memory ({first_line(error)})"
        raise CorruptWeights(f"{problem}: make one with paceline train draft --sparse") from None
    limit, size = checkpoint.config.max_position_embeddings, checkpoint.config.num_hidden_layers
    if not 0 < sparse.window <= limit or not 0 <= sparse.num_sinks <= limit:
        problem = f"feedback: a window of {sparse.window} tokens and {sparse.num_sinks} sinks"
        raise CorruptWeights(f"{problem} do not fit the model's {limit} positions")
    if len(mix) != size * (size + 1) or not np.isfinite(mix).all():
        raise CorruptWeights(
            f"feedback: mix has {len(mix)} numbers, the layers ask for {size * (size + 1)} finite ones"
        )
    return sparse, mix.reshape(size, size + 1)


class FeedbackWeights:
    """What makes a memory's keys and values: of L layers the norm before attention, and the products with both.

    Args:
        checkpoint: of the draft.
        mix: [L, L + 1].
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
        """Keys, rotated, and values [L, n, key heads, head_dim] of n rows.

        Args:
            states: [L + 1, n, hidden] float32, the residual stream before, between and after the layers.
            positions: [n] of the rows in their texts.
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
