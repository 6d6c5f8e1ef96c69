"""Rotary position embedding: inverse frequencies and their scaling, for every executor.

Su et al. 2021 (RoFormer, section 3.2.2) for the frequencies; the scalings are position interpolation (Chen et al.
2023), the wavelength-dependent rule of Llama 3.1, YaRN (Peng et al. 2023) and LongRoPE (Ding et al. 2024). Not for
rotating vectors; executors do that.
"""

import math
from typing import Any

import numpy as np

from paceline.models.fields import LARGEST, Fields, refuse, shown

DEFAULT_THETA = 10000.0
_FULL, _SLIDING = "full_attention", "sliding_attention"
_KINDS = "default, dynamic, linear, llama3, yarn, longrope, proportional"
_GGUF_KINDS = ("none", "linear", "yarn", "longrope")
_LEAST = 1e-6
"""Lower bound of divisors; model files have none below 0.1."""
_GROWTH_ROUNDING = 1e-3
"""Relative tolerance for YaRN's attention factor, which files store with few digits."""


def inverse_frequencies(theta: float, rotary_dim: int, scale: tuple[float, ...] | None = None) -> np.ndarray:
    """[rotary_dim / 2] float64: theta^(-2i / rotary_dim) times `scale`; position P turns pair i by P * entry i."""
    base = theta ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    return base if scale is None else base * np.asarray(scale)


def rope_from_hf(fields: Fields, head_dim: int, longest: int) -> dict[str, Any]:
    """The rotary fields of `ModelConfig` that a ``config.json`` asks for, as old and new transformers write it.

    `longest` is the context length in the file. LongRoPE uses other frequencies, for all tokens, once a text exceeds
    the original context length; here the context is limited to that length instead.

    Raises:
        UnsupportedModel: a scaling is not implemented, or a value is invalid.
    """
    new = fields.inner("rope_parameters")
    local = new.inner(_SLIDING)
    scaling = new.inner(_FULL) if _FULL in new else fields.inner("rope_scaling") if "rope_scaling" in fields else new
    theta = scaling.number("rope_theta", new.get("rope_theta", fields.get("rope_theta", DEFAULT_THETA)), above=1.0)
    kind = _kind(scaling)
    turned = fields.number("rotary_dim", head_dim)
    partial = scaling.number("partial_rotary_factor", fields.get("partial_rotary_factor", turned / head_dim))
    partial = 1.0 if kind == "proportional" else partial
    rotary_dim = int(head_dim * partial)
    if partial != 1 and (partial > 1 or rotary_dim < 2 or rotary_dim % 2):
        raise refuse("partial_rotary_factor", f"{partial} of {head_dim} is no even part of a head")
    if kind == "dynamic" and "alpha" in scaling and rotary_dim > 2:  # Hunyuan, whose base is another at any length
        theta *= scaling.number("alpha") ** (rotary_dim / (rotary_dim - 2))
    out: dict[str, Any] = {"rope_theta": theta, "rotary_dim": rotary_dim if rotary_dim < head_dim else None}
    if "rope_theta" in local or "rope_local_base_freq" in fields:
        out["rope_local_theta"] = local.number("rope_theta", fields.get("rope_local_base_freq", theta), above=1.0)
    if _kind(local) != "default":
        raise refuse(f"rope_parameters.{_SLIDING}", f"{shown(_kind(local))} is not implemented there, only 'default'")
    return out | _scaled(kind, scaling, fields, theta, rotary_dim, longest)


def _kind(scaling: Fields) -> str:
    """The kind of scaling, which old files call ``type``."""
    return scaling.text("rope_type", scaling.get("type", "default"))


def _scaled(kind: str, scaling: Fields, fields: Fields, theta: float, dim: int, longest: int) -> dict[str, Any]:
    """The fields that a kind of scaling adds. ``dynamic`` changes nothing within the model's context length, and
    ``mrope`` nothing for text, of which all three positions are one."""
    if kind in ("default", "dynamic", "mrope"):
        return {}
    if kind == "linear":
        return {"rope_inv_freq_scale": (1.0 / scaling.number("factor", above=_LEAST),) * (dim // 2)}
    if kind == "llama3":
        return {"rope_inv_freq_scale": _llama3_scale(scaling, inverse_frequencies(theta, dim))}
    if kind == "yarn":
        return _yarn(scaling, theta, dim, longest)
    if kind in ("longrope", "su"):
        return _longrope(scaling, fields, dim, longest)
    if kind == "proportional":
        return {"rope_inv_freq_scale": _proportional_scale(scaling, dim)}
    raise refuse("rope_scaling", f"{shown(kind)} is not implemented, only {_KINDS}")


def rope_from_gguf(
    own: Fields, head_dim: int, longest: int, factors: tuple[float, ...] | None, truncates: bool = True
) -> dict[str, Any]:  # fmt: skip
    """The rotary fields of `ModelConfig` that a GGUF file asks for; `truncates` is what YaRN's ``truncate`` is there.

    `own` are the architecture's key-value pairs without its prefix. GGUF stores the scalings of Llama 3 and LongRoPE as
    computed divisors `factors`, the others as parameters. ``rope.dimension_sections`` divides a head's pairs among
    three positions, which are one in a text.
    """
    theta = own.number("rope.freq_base", DEFAULT_THETA, above=1.0)
    dim = own.whole("rope.dimension_count", head_dim, least=2, most=head_dim)
    kind = own.text("rope.scaling.type", "none")
    if dim % 2 or kind not in _GGUF_KINDS:
        problem = f"{shown(kind)} over {dim} is not implemented, only {', '.join(_GGUF_KINDS)}"
        raise refuse("rope.scaling.type", problem)
    out: dict[str, Any] = {"rope_theta": theta, "rotary_dim": dim if dim < head_dim else None}
    factor = own.number("rope.scaling.factor", 1.0, above=_LEAST) if kind in ("linear", "yarn") else 1.0
    original = own.whole("rope.scaling.original_context_length", longest)
    if kind == "yarn":
        if factors is not None:
            raise refuse("rope_freqs.weight", "divisors beside YaRN are not implemented")
        yarn = {"factor": factor, "original_max_position_embeddings": original, "truncate": truncates}
        return out | _yarn_from_gguf(own, yarn, theta, dim, longest)
    if kind == "longrope" or "rope.scaling.attn_factor" in own:
        out["rope_factor"] = own.number("rope.scaling.attn_factor", 1.0)
        out["max_position_embeddings"] = min(longest, original)
    if factors is not None:
        return out | {"rope_inv_freq_scale": _divided("rope_freqs.weight", factors, dim, factor)}
    return out | ({"rope_inv_freq_scale": (1.0 / factor,) * (dim // 2)} if factor != 1.0 else {})


def _yarn_from_gguf(own: Fields, yarn: dict[str, Any], theta: float, dim: int, longest: int) -> dict[str, Any]:
    """YaRN as llama.cpp reads it; ``attn_factor`` and ``yarn_log_multiplier`` change the attention factor."""
    prefix, factor = "rope.scaling.", yarn["factor"]
    named = {"beta_fast": f"{prefix}yarn_beta_fast", "beta_slow": f"{prefix}yarn_beta_slow"}
    asked = {ours: own.number(theirs, above=_LEAST) for ours, theirs in named.items() if theirs in own}
    asked["llama_4_scaling_beta"] = own.get("attention.temperature_scale", 0.0)
    own.expect(f"{prefix}yarn_ext_factor", 1.0)
    found, total = _yarn(Fields(yarn | asked), theta, dim, longest), f"{prefix}yarn_attn_factor"
    growth = _growth(factor, 1.0) / _growth(factor, own.number(f"{prefix}yarn_log_multiplier", 0.0, above=-1.0))
    if total in own and abs(own.number(total) - growth) > _GROWTH_ROUNDING * growth:
        raise refuse(total, f"{own.number(total):g} is not the growth of {growth:g} that llama.cpp has")
    own_factor = own.number(f"{prefix}attn_factor", 1.0)
    if abs(own_factor - growth) <= _GROWTH_ROUNDING * growth:  # the first files of OLMo 3 state the growth itself here
        own_factor = 1.0
    return found | {"rope_factor": growth * own_factor}


def _divided(name: str, factors: tuple[float, ...], dim: int, linear: float = 1.0) -> tuple[float, ...]:
    if len(factors) != dim // 2 or not all(_LEAST < f < math.inf for f in factors):
        raise refuse(name, f"{len(factors)} factors, not {dim // 2} positive ones")
    return tuple(1.0 / (linear * f) for f in factors)


def _llama3_scale(scaling: Fields, inv_freq: np.ndarray) -> tuple[float, ...]:
    """Llama 3.1's rule: high frequencies stay, low ones are divided by `factor`, those between are interpolated."""
    factor, low, high = (scaling.number(k, above=_LEAST) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    if not high > low:
        raise refuse("high_freq_factor", f"{high} is not above low_freq_factor {low}")
    context = scaling.number("original_max_position_embeddings")
    turns = context * inv_freq / (2 * math.pi)  # full turns within the original context
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return tuple(float(x) for x in (1 - blend) / factor + blend)


def _proportional_scale(scaling: Fields, dim: int) -> tuple[float, ...]:
    """Gemma 4: only the first part of the pairs of a head turn, with the frequencies that they have in the whole."""
    partial = scaling.number("partial_rotary_factor", 1.0)
    if partial > 1:
        raise refuse("partial_rotary_factor", f"{partial} is more than a whole head")
    turning = int(partial * dim // 2)
    return (1.0 / scaling.number("factor", 1.0, above=_LEAST),) * turning + (0.0,) * (dim // 2 - turning)


def _yarn(scaling: Fields, theta: float, dim: int, longest: int) -> dict[str, Any]:
    """YaRN, sections 3.2 and 3.4: high frequencies stay, low ones are divided by `factor`, those between interpolated.

    Sines and cosines are multiplied by the attention factor, 0.1 ln(factor) + 1 by default. The context is the original
    one times `factor`, which the file may state in place of it (`longest`).
    """
    factor = scaling.number("factor", above=_LEAST)
    original = scaling.number("original_max_position_embeddings", longest, above=_LEAST)
    fast, slow = (scaling.number(k, turns, above=_LEAST) for k, turns in (("beta_fast", 32.0), ("beta_slow", 1.0)))
    ends = [dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (fast, slow)]
    if scaling.flag("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low, high = max(ends[0], 0), min(ends[1], dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    scale = tuple(float(x) for x in ramp / factor + (1 - ramp))
    growth = _growth(factor, 1.0)
    if "mscale" in scaling and "mscale_all_dim" in scaling:
        growth = _growth(factor, scaling.number("mscale")) / _growth(factor, scaling.number("mscale_all_dim"))
    context = max(longest, int(min(original * factor, LARGEST)))
    queries = {}
    if scaling.number("llama_4_scaling_beta", 0.0, above=-_LEAST) > 0:  # not of rotation, but stated beside it
        queries = {"query_growth": scaling.number("llama_4_scaling_beta"),
                   "query_growth_every": scaling.whole("original_max_position_embeddings", longest)}  # fmt: skip
    return {"rope_inv_freq_scale": scale, "rope_factor": scaling.number("attention_factor", growth),
            "max_position_embeddings": context, **queries}  # fmt: skip


def _growth(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(scaling: Fields, fields: Fields, dim: int, longest: int) -> dict[str, Any]:
    """LongRoPE within the original context: the short divisors, with the attention factor of the long context."""
    original = scaling.whole(
        "original_max_position_embeddings", fields.get("original_max_position_embeddings", longest)
    )
    factor = scaling.number("factor", longest / original)
    growth = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    return {
        "rope_inv_freq_scale": _divided("short_factor", scaling.numbers("short_factor"), dim),
        "rope_factor": scaling.number("attention_factor", growth),
        "max_position_embeddings": min(longest, original),
    }
