"""Rotary position embedding in numbers: inverse frequencies and their scaling, for every executor.

Su et al. 2021 (RoFormer, section 3.2.2) for the frequencies; the scalings are position interpolation (Chen et al. 2023)
and the wavelength-dependent rule of Llama 3.1. Not the place that rotates vectors; executors do that.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.errors import UnsupportedModel


def inverse_frequencies(theta: float, head_dim: int, scale: tuple[float, ...] | None = None) -> np.ndarray:
    """[head_dim / 2] float64: theta^(-2i / head_dim) times `scale`; row position P turns pair i by P * entry i."""
    base = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    return base if scale is None else base * np.asarray(scale)


def rope_theta_from_hf(values: Mapping[str, Any], default: float) -> float:
    """The base of the frequencies, from ``rope_parameters`` (transformers 5) or ``rope_theta`` (before)."""
    parameters = values.get("rope_parameters") or {}
    return float(parameters.get("rope_theta") or values.get("rope_theta") or default)


def rope_scale_from_hf(values: Mapping[str, Any], theta: float, head_dim: int) -> tuple[float, ...] | None:
    """Factors on the inverse frequencies that a ``config.json`` asks for; None when it asks for none.

    Raises:
        UnsupportedModel: a scaling other than ``linear`` and ``llama3``.
    """
    scaling = values.get("rope_scaling") or values.get("rope_parameters")
    if not scaling:
        return None
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if values.get("partial_rotary_factor", scaling.get("partial_rotary_factor", 1.0)) != 1.0:
        raise _unsupported("partial_rotary_factor", "a rotation of a part of the head")
    if kind == "default":
        return None
    if kind == "linear":
        return (1.0 / _number(scaling, "factor"),) * (head_dim // 2)
    if kind == "llama3":
        return _llama3_scale(scaling, inverse_frequencies(theta, head_dim))
    raise _unsupported("rope_scaling", repr(kind))


def rope_scale_from_gguf(
    own: Mapping[str, Any], head_dim: int, factors: tuple[float, ...] | None
) -> tuple[float, ...] | None:
    """Factors on the inverse frequencies that a GGUF file asks for.

    `own` are the architecture's key-value pairs without its name. GGUF stores Llama 3's rule as the finished divisors
    `factors`, linear scaling as a number.
    """
    kind = own.get("rope.scaling.type") or "none"
    if kind not in ("none", "linear"):
        raise _unsupported("rope.scaling.type", repr(kind))
    linear = 1.0 if kind == "none" else _number(own, "rope.scaling.factor")
    if factors is None:
        return None if linear == 1.0 else (1.0 / linear,) * (head_dim // 2)
    if len(factors) != head_dim // 2 or any(f <= 0 for f in factors):
        raise _unsupported("rope_freqs.weight", f"{len(factors)} factors, not {head_dim // 2} positive ones")
    return tuple(1.0 / (linear * f) for f in factors)


def _llama3_scale(scaling: Mapping[str, Any], inv_freq: np.ndarray) -> tuple[float, ...]:
    """Llama 3.1's rule: short wavelengths stay, long ones are divided by `factor`, those between are blended."""
    factor, low, high = (_number(scaling, k) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    context = _number(scaling, "original_max_position_embeddings")
    turns = context * inv_freq / (2 * math.pi)  # full turns within the original context
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return tuple(float(x) for x in (1 - blend) / factor + blend)


def _number(scaling: Mapping[str, Any], name: str) -> float:
    value = scaling.get(name)
    if not isinstance(value, (int, float)) or value <= 0:
        raise UnsupportedModel(f"{name}: {value!r} is not a positive scaling of positions; correct the model's config")
    return float(value)


def _unsupported(field: str, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"{field}: {what} is not implemented; use a model with plain, linear or llama3 positions")
