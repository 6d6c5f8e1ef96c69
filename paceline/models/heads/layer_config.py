"""Sizes of a head's decoder layers, read from and written as transformers' keys.

Rotary theta and scaling of a head are those of its training, independent of the target's. Newer transformers write
``rope_parameters``, older ones ``rope_theta`` and ``rope_scaling``: both are read and written.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.rope import rope_from_hf
from paceline.models.fields import Fields
from paceline.models.heads.strict import Settings

_KEYS = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings", "rope_theta", "rope_scaling",
    "rope_parameters", "partial_rotary_factor", "hidden_act", "attention_bias", "mlp_bias", "tie_word_embeddings",
    "sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "qkv_bias", "is_causal",
)  # fmt: skip
_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_layer(settings: Settings, **more: Any) -> ModelConfig:
    """The config of the layers that `settings` describe; `more` are keys that the layout stores elsewhere.

    Raises:
        UnsupportedModel: a setting is not implemented.
        InvalidParameter: a setting is invalid, or the layers have experts.
    """
    if not settings.values:
        raise settings.wrong("config.json", "is missing or empty", "put the head's own beside its weights")
    settings.skip(*_KEYS)
    values = {name: settings.values[name] for name in _KEYS if name in settings.values} | more
    values.setdefault("model_type", "llama")
    kinds = values.pop("layer_types", None)
    if kinds:
        if not isinstance(kinds, list) or not all(kind in (_FULL, _SLIDING) for kind in kinds):
            raise settings.wrong("layer_types", f"{kinds} is not read", "use a head with full attention")
        values["use_sliding_window"] = _SLIDING in kinds
    values["max_window_layers"] = 0
    if values.get("max_position_embeddings") is None:
        values["max_position_embeddings"] = 2048
    try:
        config = _within_window(ModelConfig.from_hf(values))
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{settings.source}: {error}") from None
    if config.experts is not None:
        raise settings.wrong("model_type", f"{config.model_type} has experts", "use a head with dense layers")
    return config


def _within_window(config: ModelConfig) -> ModelConfig:
    """`config` without windows, and with positions limited to the shortest window, within which attention is full."""
    if not any(config.windows):
        return config
    longest = min(config.max_position_embeddings, *filter(None, config.windows))
    return replace(config, windows=(), max_position_embeddings=longest)


def plain_layers(config: ModelConfig) -> ModelConfig:
    """`config` if layouts of heads can express its layers; else Llama's layers of the same sizes.

    Heads are made of these where their target has windows, sinks, norms elsewhere and the like.
    """
    if config.has_plain_layers:
        return config
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "norm_eps", "max_position_embeddings", "rope_theta",
            "tie_word_embeddings", "bos_token_id", "eos_token_ids", "experts")  # fmt: skip
    return ModelConfig("llama", **{name: getattr(config, name) for name in kept})


def layer_values(config: ModelConfig, num_layers: int) -> dict[str, Any]:
    """transformers' keys for `num_layers` layers of `config`.

    Raises:
        InvalidParameter: transformers' keys cannot express the layers or their positions.
    """
    kind = "qwen3" if config.qk_norm else "llama"
    if not config.has_plain_layers:
        raise InvalidParameter("layer", "is not of Llama's form", "train heads with rms norms and gated feed-forwards")
    if config.attention_bias != config.attention_out_bias:
        kind = "qwen2" if not config.qk_norm and config.attention_bias else _unsayable("attention_bias")
    scaling = _scaling(config)
    parameters = {"rope_theta": config.rope_theta, **(scaling or {"rope_type": "default"})}
    values = {
        "model_type": kind, "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size, "num_hidden_layers": num_layers,
        "num_attention_heads": config.num_attention_heads, "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim, "hidden_act": "silu", "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_position_embeddings, "rope_theta": config.rope_theta,
        "rope_scaling": scaling, "rope_parameters": parameters,
        "attention_bias": config.attention_out_bias, "tie_word_embeddings": False,
    }  # fmt: skip
    if kind == "llama":
        values["mlp_bias"] = config.mlp_bias
    elif config.mlp_bias:
        _unsayable("mlp_bias")
    return values


def _scaling(config: ModelConfig) -> dict[str, Any] | None:
    scale = config.rope_inv_freq_scale
    if scale is None:
        return None
    if len(set(scale)) == 1:
        return {"rope_type": "linear", "factor": 1.0 / scale[0]}
    return _llama3(config, np.asarray(scale))


def _llama3(config: ModelConfig, scale: np.ndarray) -> dict[str, Any]:
    """The parameters of Llama 3's rule that give the factors `scale`, if they are among those that models use."""
    factor = float(round(1.0 / scale.min(), 6))
    for context in (8192, 4096, 16384, 32768):
        scaling = {
            "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": context,
        }  # fmt: skip
        fields = Fields({"rope_scaling": scaling, "rope_theta": config.rope_theta})
        found = rope_from_hf(fields, config.head_dim, context).get("rope_inv_freq_scale")
        if found is not None and np.allclose(found, scale, rtol=1e-6):
            return scaling
    _unsayable("rope_inv_freq_scale")
    return {}


def _unsayable(field: str) -> Any:
    raise InvalidParameter(field, "has no place in this layout", "keep the head in the layout it came in")
