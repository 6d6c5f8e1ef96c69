"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2): its configuration, and the shapes of its tensors.

Keys and values of all heads are products of one latent vector per token, and queries may be too. Here keys and values
are expanded before they are cached, so that attention itself is that of other models: a head of a key is its part that
turns, which all heads share, before its part that does not. Not for file names (`families.py`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline.models.fields import Fields, refuse

LATENT_EPS = 1e-6
"""Epsilon of the norms of latents, whatever that of the model is, as in transformers."""
_YARN_LOG = "rope.scaling.yarn_log_multiplier"
_MOST = 1 << 16
"""Largest part of a head and rank. Models have up to 256 and 1536."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Sizes of latent attention, under transformers' names.

    Attributes:
        kv_lora_rank, q_lora_rank: of the latents of keys with values and of queries; 0 for queries without one.
        qk_rope_head_dim, qk_nope_head_dim: the parts of a head of queries and keys that turns and that does not.
        v_head_dim: of values, which are cached with zeros up to a key's size.
    """

    kv_lora_rank: int
    q_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int

    def __post_init__(self) -> None:
        if self.v_head_dim > self.head_dim:
            raise refuse("v_head_dim", f"{self.v_head_dim} is more than the {self.head_dim} of a key")
        if self.qk_rope_head_dim % 2:
            raise refuse("qk_rope_head_dim", f"{self.qk_rope_head_dim} is odd")

    @property
    def head_dim(self) -> int:
        """Of queries and keys."""
        return self.qk_rope_head_dim + self.qk_nope_head_dim


def latent_from_hf(fields: Fields) -> dict[str, Any]:
    """Fields of `ModelConfig` that a ``config.json`` asks for.

    Raises:
        UnsupportedModel: a setting is not implemented, or a value is invalid.
    """
    heads = fields.whole("num_attention_heads")
    for name, expected in (("attention_bias", False), ("mlp_bias", False), ("rope_interleave", True),
                           ("num_key_value_heads", heads)):  # fmt: skip
        fields.expect(name, expected)
    ranks = fields.whole("kv_lora_rank", most=_MOST), fields.whole("q_lora_rank", 0, least=0, most=_MOST)
    rope, still = (fields.whole(f"qk_{part}_head_dim", most=_MOST) for part in ("rope", "nope"))
    value = fields.whole("v_head_dim", max(1, fields.whole("hidden_size") // heads), most=_MOST)
    scaling = fields.inner("rope_scaling" if "rope_scaling" in fields else "rope_parameters")
    kind, grows = scaling.text("rope_type", scaling.get("type", "default")), 0.0
    if kind != "default" and "mscale_all_dim" in scaling:
        grows = scaling.number("mscale_all_dim", above=-1.0)
    factor = scaling.number("factor") if grows else 1.0
    return _fields(LatentAttention(*ranks, rope, still, value), heads, grows, factor)


def latent_from_gguf(own: Fields) -> dict[str, Any]:
    """As `latent_from_hf`, from GGUF keys without the architecture's prefix.

    Old files state the sizes of expanded heads, newer ones those of latents, and of heads in keys of their own.
    """
    rope, heads = own.whole("rope.dimension_count", most=_MOST), own.whole("attention.head_count")
    per_head = max(1, own.whole("embedding_length") // heads)
    key, value = (
        own.whole(f"attention.{name}_length_mla", own.get(f"attention.{name}_length", per_head), most=_MOST)
        for name in ("key", "value")
    )
    if key <= rope:
        raise refuse("attention.key_length", f"{key} leaves nothing beside the {rope} dimensions that turn")
    ranks = own.whole("attention.kv_lora_rank", most=_MOST), own.whole("attention.q_lora_rank", 0, least=0, most=_MOST)
    grows = 10 * own.number(_YARN_LOG, 0.0, above=-1.0)  # converters write a tenth of it
    factor = own.number("rope.scaling.factor", 1.0)
    return _fields(LatentAttention(*ranks, rope, key - rope, value), heads, grows, factor)


def yarn_of_latent(own: Fields) -> Fields:
    """`own` with what the GGUF key for the growth of YaRN means in other architectures: scores grow, angles do not."""
    return Fields({**dict(own.items()), **({_YARN_LOG: 1.0} if _YARN_LOG in own else {})})


def _fields(latent: LatentAttention, heads: int, grows: float, factor: float) -> dict[str, Any]:
    """`grows` is YaRN's ``mscale_all_dim``, by which scores grow where angles do not."""
    growth = 0.1 * grows * math.log(factor) + 1.0 if factor > 1 else 1.0
    return {
        "latent": latent, "head_dim": latent.head_dim, "num_key_value_heads": heads,
        "attention_scale": latent.head_dim**-0.5 * growth * growth,
    }  # fmt: skip


def latent_shapes(latent: LatentAttention, hidden: int, heads: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name (inside a layer) and shape of every tensor of latent attention.

    Of queries and of ``kv_a_proj`` the rows that turn come first, their pairs as halves.
    """
    query, rank = heads * latent.head_dim, latent.kv_lora_rank
    if latent.q_lora_rank:
        yield "self_attn.q_a_proj.weight", (latent.q_lora_rank, hidden)
        yield "self_attn.q_a_norm.weight", (latent.q_lora_rank,)
        yield "self_attn.q_b_proj.weight", (query, latent.q_lora_rank)
    else:
        yield "self_attn.q_proj.weight", (query, hidden)
    yield "self_attn.kv_a_proj.weight", (latent.qk_rope_head_dim + rank, hidden)
    yield "self_attn.kv_a_norm.weight", (rank,)
    yield "self_attn.k_b_proj.weight", (heads * latent.qk_nope_head_dim, rank)
    yield "self_attn.v_b_proj.weight", (heads * latent.v_head_dim, rank)
    yield "self_attn.o_proj.weight", (hidden, heads * latent.v_head_dim)
