"""Converts an EAGLE-3.1 head to the form of EAGLE-3 that llama.cpp and SGLang support: one norm over all taps.

EAGLE-3.1 norms every tap separately, w_i * tap_i / rms_i, and feeds back the state after its last norm. One norm over
all taps divides by their common rms instead. The two are close if c_i = rms / rms_i is nearly constant: its mean over a
text is multiplied into the weights, w_i * c_i. There is no such approximation for the state that is fed back, so later
tokens of a chain are drafted worse. Not for training.
"""

from dataclasses import replace

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.base import CausalLM
from paceline.models.heads.record import HeadRecord
from paceline.models.heads.self_check import KEY, check_entry, own_text, target_states

_OF_THE_OTHER = (KEY, "accepted", "held_out", "tree")
"""Entries of a card that were measured with the head before the change."""
_FIRST = 4
"""First positions of a text, which are left out because their states are far larger than all others."""


def with_one_norm(record: HeadRecord, target: CausalLM, opening: list[int]) -> HeadRecord:
    """`record` without ``fc_norm`` and ``norm_output``; c_i is measured on the text in its card or on generated text.

    Args:
        opening: prompt for the target where the card stores no text.

    Raises:
        InvalidParameter: the head has no norms per tap.
    """
    config = record.config
    if config.family != "eagle3" or not config.fc_norm:
        raise InvalidParameter("one_norm", "is for EAGLE-3.1 heads, with a norm per tap", "leave it out")
    tokens = check_entry(record) or own_text(target, opening)
    _, states = target_states(target, tokens, config.taps)
    taps = states.reshape(len(states), len(config.taps), -1)
    tensors, names = dict(record.tensors), [f"fc_norm.{i}.weight" for i in range(len(config.taps))]
    weights = np.stack([tensors.pop(name) for name in names]) * _shares(taps)[:, None]
    tensors["input_norm.weight"] = weights.astype(np.float32).ravel()
    card = {name: value for name, value in record.card.items() if name not in _OF_THE_OTHER}
    described = replace(config, fc_norm=False, norm_before_fc=True, norm_output=False)
    return replace(record, config=described, tensors=tensors, card=card)


def _shares(taps: np.ndarray) -> np.ndarray:
    """[taps] geometric means over a text of c_i = rms / rms_i; `taps` are states [n, number of taps, width]."""
    squares = np.square(taps[min(_FIRST, len(taps) - 1) :].astype(np.float64)).mean(axis=2)
    return np.exp(0.5 * (np.log(squares.mean(axis=1, keepdims=True)) - np.log(squares)).mean(axis=0))
