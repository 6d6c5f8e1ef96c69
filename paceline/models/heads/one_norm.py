"""An EAGLE-3.1 head in the form of EAGLE-3 that llama.cpp and SGLang compute too: one norm, over all taps.

EAGLE-3.1 norms every tap by itself, w_i * tap_i / rms_i, and feeds back what it normed last. One norm over all taps
divides by the rms of all. It comes near where rms_i keeps its share of that: c_i = rms / rms_i goes into the weights,
w_i * c_i, measured on a text. That the state before the last norm is fed back has no such stand-in, so further tokens
of a chain are drafted worse. Not for training.
"""

from dataclasses import replace

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.base import CausalLM
from paceline.models.heads.record import HeadRecord
from paceline.models.heads.self_check import KEY, own_text, target_states

_FIRST = 4
"""Places at the beginning whose states are far larger than all others, and are left out."""


def with_one_norm(record: HeadRecord, target: CausalLM, opening: list[int]) -> HeadRecord:
    """`record` without ``fc_norm`` and ``norm_output``, by shares measured on its card's text, or the target's own.

    Args:
        opening: what the target goes on from where the card stores no text.

    Raises:
        InvalidParameter: a head without norms per tap.
    """
    config, stored = record.config, record.card.get(KEY)
    if config.family != "eagle3" or not config.fc_norm:
        raise InvalidParameter("one_norm", "is for EAGLE-3.1 heads, with a norm per tap", "leave it out")
    tokens = stored["tokens"] if isinstance(stored, dict) else own_text(target, opening)
    _, states = target_states(target, tokens, config.taps)
    taps = states.reshape(len(states), len(config.taps), -1)
    tensors, names = dict(record.tensors), [f"fc_norm.{i}.weight" for i in range(len(config.taps))]
    weights = np.stack([tensors.pop(name) for name in names]) * _shares(taps)[:, None]
    tensors["input_norm.weight"] = weights.astype(np.float32).ravel()
    card = {name: value for name, value in record.card.items() if name != KEY}
    described = replace(config, fc_norm=False, norm_before_fc=True, norm_output=False)
    return replace(record, config=described, tensors=tensors, card=card)


def _shares(taps: np.ndarray) -> np.ndarray:
    """[taps] geometric mean of the rms of all over that of each; `taps` [n, number of them, width]."""
    squares = np.square(taps[min(_FIRST, len(taps) - 1) :].astype(np.float64)).mean(axis=2)
    return np.exp(0.5 * (np.log(squares.mean(axis=1, keepdims=True)) - np.log(squares)).mean(axis=0))
