"""`ModelConfig`: the numbers that define an architecture, under the names transformers uses.

Read from a ``config.json`` (`ModelConfig.from_hf`) or from GGUF metadata (`ModelConfig.from_gguf`). A setting that
would change the numbers and is not implemented is refused here, first of all. Not for weights (`checkpoint.py`) and not
for how a model is run (`paceline.config`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from paceline.errors import UnsupportedModel
from paceline.models.experts import MIXTURE_MODEL_TYPES, Experts, experts_from_hf
from paceline.models.rope import rope_scale_from_gguf, rope_scale_from_hf, rope_theta_from_hf

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gpt2", *MIXTURE_MODEL_TYPES)
"""transformers' ``model_type`` of every family that can be run; GGUF calls mistral ``llama``."""

_DEFAULT_ROPE_THETA = 10000.0
_QWEN3_HEAD_DIM = 128
"""transformers' default where a Qwen3 config does not say."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of a decoder-only transformer.

    `model_type` is transformers', one of `SUPPORTED_MODEL_TYPES`. `attention_bias` covers
    query, key and value, `attention_out_bias` the projection after attention; `qk_norm` is Qwen3's per-head RMS norm
    of queries and keys. `rope_inv_freq_scale` multiplies the head_dim / 2 inverse frequencies, None for all ones. A
    model with a sliding window attends to everything within its first window, so `max_position_embeddings` is cut to
    the window and the model is exact up to there. With `experts`, `intermediate_size` is the width of one of them.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    norm_eps: float
    max_position_embeddings: int
    rope_theta: float = _DEFAULT_ROPE_THETA
    rope_inv_freq_scale: tuple[float, ...] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm: Literal["rms", "layer"] = "rms"
    mlp: Literal["gated_silu", "gelu_tanh"] = "gated_silu"
    position_embedding: Literal["rotary", "learned"] = "rotary"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    experts: Experts | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                     "num_key_value_heads", "head_dim", "max_position_embeddings"):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise _refuse(name, f"{value!r} is not a positive whole number")
        if self.num_attention_heads % self.num_key_value_heads:
            raise _refuse("num_key_value_heads", f"{self.num_key_value_heads} does not divide the query heads")
        if self.position_embedding == "rotary" and self.head_dim % 2:
            raise _refuse("head_dim", f"{self.head_dim} is odd, rotary positions need an even one")

    @classmethod
    def from_hf(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """The config of a ``config.json``, as old and new transformers versions write it.

        Raises:
            UnsupportedModel: naming the field, when the architecture or one of its settings is not implemented.
        """
        model_type = values.get("model_type")
        if model_type not in SUPPORTED_MODEL_TYPES:
            raise _unknown_architecture("model_type", model_type)
        return _gpt2_from_hf(values) if model_type == "gpt2" else _llama_like_from_hf(values)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]],
                  rope_factors: tuple[float, ...] | None = None) -> "ModelConfig":  # fmt: skip
        """The config of a GGUF file.

        Args:
            metadata: the file's key-value pairs.
            shapes: tensor name (GGUF's) to shape, outermost dimension first; says which optional parts there are.
            rope_factors: the content of ``rope_freqs.weight``, divisors of the inverse frequencies, where there is one.

        Raises:
            UnsupportedModel: naming the key, when the architecture or one of its settings is not implemented.
        """
        architecture = metadata.get("general.architecture")
        if architecture not in SUPPORTED_MODEL_TYPES or architecture in MIXTURE_MODEL_TYPES:
            raise _unknown_architecture("general.architecture", architecture)
        return _from_gguf(str(architecture), metadata, shapes, rope_factors)


def _refuse(field: str, problem: str) -> UnsupportedModel:
    return UnsupportedModel(f"{field}: {problem}; use a model of a supported family {SUPPORTED_MODEL_TYPES} without it")


def _unknown_architecture(field: str, value: object) -> UnsupportedModel:
    supported = ", ".join(SUPPORTED_MODEL_TYPES)
    return UnsupportedModel(f"{field}: {value!r} is not an architecture Paceline runs; use one of {supported}")


def _need(values: Mapping[str, Any], name: str) -> Any:
    if values.get(name) is None:
        raise UnsupportedModel(f"{name}: missing from the model's configuration; get the complete file from its source")
    return values[name]


def _count(values: Mapping[str, Any], name: str) -> int:
    value = _need(values, name)
    if not isinstance(value, int) or value < 1:
        raise _refuse(name, f"{value!r} is not a positive whole number")
    return value


def _positive(values: Mapping[str, Any], name: str) -> float:
    value = _need(values, name)
    if not isinstance(value, (int, float)) or not value > 0:
        raise _refuse(name, f"{value!r} is not a positive number")
    return float(value)


def _expect(values: Mapping[str, Any], name: str, expected: object) -> None:
    """Refuse a setting that would change the numbers; an absent one has the expected value."""
    if values.get(name, expected) != expected:
        raise _refuse(name, f"{values[name]!r} is not implemented, only {expected!r}")


def _eos_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _window_limit(values: Mapping[str, Any], model_type: str) -> int:
    """Longest context at which full attention is the model's own: the window, where one is in force."""
    longest = _count(values, "max_position_embeddings")
    window = values.get("sliding_window")
    in_force = values.get("use_sliding_window", model_type in ("mistral", "mixtral"))
    return min(longest, window) if window and in_force else longest


def _llama_like_from_hf(values: Mapping[str, Any]) -> ModelConfig:
    model_type = values["model_type"]
    _expect(values, "hidden_act", "silu")
    heads, hidden = _count(values, "num_attention_heads"), _count(values, "hidden_size")
    default_head_dim = _QWEN3_HEAD_DIM if model_type in ("qwen3", "qwen3_moe") else hidden // heads
    head_dim = values.get("head_dim") or default_head_dim
    theta = rope_theta_from_hf(values, _DEFAULT_ROPE_THETA)
    bias = bool(values.get("attention_bias", False))
    experts, inner = experts_from_hf(values) or (None, _count(values, "intermediate_size"))
    return ModelConfig(
        model_type=model_type,
        vocab_size=_count(values, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=_count(values, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=values.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        norm_eps=_positive(values, "rms_norm_eps"),
        max_position_embeddings=_window_limit(values, model_type),
        rope_theta=theta,
        rope_inv_freq_scale=rope_scale_from_hf(values, theta, head_dim),
        tie_word_embeddings=bool(values.get("tie_word_embeddings", False)),
        attention_bias=bias or model_type == "qwen2" or (model_type == "qwen2_moe" and values.get("qkv_bias", True)),
        attention_out_bias=bias,
        mlp_bias=bool(values.get("mlp_bias", False)),
        qk_norm=model_type in ("qwen3", "qwen3_moe"),
        experts=experts,
        bos_token_id=values.get("bos_token_id"),
        eos_token_ids=_eos_ids(values.get("eos_token_id")),
    )


def _gpt2_from_hf(values: Mapping[str, Any]) -> ModelConfig:
    _expect(values, "activation_function", "gelu_new")
    _expect(values, "scale_attn_weights", True)
    _expect(values, "scale_attn_by_inverse_layer_idx", False)
    _expect(values, "add_cross_attention", False)
    hidden, heads = _count(values, "n_embd"), _count(values, "n_head")
    return ModelConfig(
        model_type="gpt2",
        vocab_size=_count(values, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=values.get("n_inner") or 4 * hidden,
        num_hidden_layers=_count(values, "n_layer"),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        norm_eps=_positive(values, "layer_norm_epsilon"),
        max_position_embeddings=_count(values, "n_positions"),
        tie_word_embeddings=bool(values.get("tie_word_embeddings", True)),
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        norm="layer",
        mlp="gelu_tanh",
        position_embedding="learned",
        bos_token_id=values.get("bos_token_id"),
        eos_token_ids=_eos_ids(values.get("eos_token_id")),
    )


def _from_gguf(architecture: str, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]],
               rope_factors: tuple[float, ...] | None) -> ModelConfig:  # fmt: skip
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    is_gpt2 = architecture == "gpt2"
    _expect(own, "expert_count", 0)
    heads, hidden = _count(own, "attention.head_count"), _count(own, "embedding_length")
    head_dim = own.get("attention.key_length") or hidden // heads
    if not is_gpt2:
        _expect(own, "rope.dimension_count", head_dim)
    longest = _count(own, "context_length")
    return ModelConfig(
        model_type=architecture,
        vocab_size=shapes.get("token_embd.weight", (0,))[0],
        hidden_size=hidden,
        intermediate_size=_count(own, "feed_forward_length"),
        num_hidden_layers=_count(own, "block_count"),
        num_attention_heads=heads,
        num_key_value_heads=own.get("attention.head_count_kv") or heads,
        head_dim=head_dim,
        norm_eps=_positive(own, f"attention.layer_norm_{'' if is_gpt2 else 'rms_'}epsilon"),
        max_position_embeddings=min(longest, own.get("attention.sliding_window") or longest),
        rope_theta=_positive({"rope.freq_base": _DEFAULT_ROPE_THETA} | own, "rope.freq_base"),
        rope_inv_freq_scale=None if is_gpt2 else rope_scale_from_gguf(own, head_dim, rope_factors),
        tie_word_embeddings="output.weight" not in shapes,
        attention_bias="blk.0.attn_q.bias" in shapes or "blk.0.attn_qkv.bias" in shapes,
        attention_out_bias="blk.0.attn_output.bias" in shapes,
        mlp_bias="blk.0.ffn_up.bias" in shapes,
        qk_norm="blk.0.attn_q_norm.weight" in shapes,
        norm="layer" if is_gpt2 else "rms",
        mlp="gelu_tanh" if is_gpt2 else "gated_silu",
        position_embedding="learned" if is_gpt2 else "rotary",
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_gguf_eos_ids(metadata),
    )


def _gguf_eos_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """End of sequence and end of turn, where they differ."""
    ids = (metadata.get("tokenizer.ggml.eos_token_id"), metadata.get("tokenizer.ggml.eot_token_id"))
    return tuple(dict.fromkeys(i for i in ids if i is not None))
