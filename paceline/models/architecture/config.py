"""`ModelConfig`: the parts an architecture is made of and their sizes, under the names transformers uses.

Read from a ``config.json`` (`ModelConfig.from_hf`) or from GGUF metadata (`ModelConfig.from_gguf`); what sets families
apart is in `families.py`. A setting that changes the computation and is not implemented is refused here. Not for
weights (`files/checkpoint.py`) and not for how a model is run (`paceline.config`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal

from paceline.models.architecture.experts import Experts, experts_from_gguf, experts_from_hf
from paceline.models.architecture.families import FAMILIES, family_of_gguf, unknown_architecture
from paceline.models.architecture.family import MOST_LAYERS, Family
from paceline.models.architecture.latent import LatentAttention, latent_from_gguf, latent_from_hf, yarn_of_latent
from paceline.models.architecture.layer_sizes import PER_LAYER, LayerSizes, largest, values_apart
from paceline.models.architecture.recurrence import Recurrence
from paceline.models.architecture.rope import DEFAULT_THETA, rope_from_gguf, rope_from_hf
from paceline.models.architecture.windows import windows_from_gguf, windows_from_hf
from paceline.models.fields import LARGEST, Fields, refuse, shown

SUPPORTED_MODEL_TYPES = tuple(FAMILIES)
"""transformers' ``model_type`` of every family that can be run; GGUF calls mistral and mixtral ``llama``."""

_MOST_EOS = 64
_ENDS = frozenset((
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|end_of_text|>",
    "<|observation|>", "<turn|>",
))  # fmt: skip
"""Tokens that end a turn or a text in every vocabulary that has them, as in llama.cpp, and the one after a call of
GLM-4's, which its config.json names. Many GGUF files name only one end token; Gemma's name that of a text, which no
answer of a chat reaches."""
_HARMONY_ENDS = frozenset(("<|return|>", "<|call|>", "<|endoftext|>"))
"""The same for gpt-oss, in whose answers ``<|end|>`` ends one of several messages."""
_RMS_EPSILON = "attention.layer_norm_rms_epsilon"
_OTHER_NAMES = {"qwen2_5_vl": "qwen2_5_vl_text", "mimo": "qwen2"}
"""Multimodal models whose first files state the language model's fields among their own, and MiMo-7B, which is Qwen2
with a layer for multi-token prediction."""
_WIDEST_HEAD = 1 << 16
"""Largest head dimension; bounds the rotary tables, which are made before weights are read. Models have up to 256."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape, parts and constants of a decoder-only transformer; the defaults are Llama's parts.

    Attributes:
        model_type: transformers' name, one of `SUPPORTED_MODEL_TYPES`; selects the layout of files, not what is
            computed.
        intermediate_size: width of the feed-forward; with `experts`, of one expert.
        rope_inv_freq_scale: factors on the rotary_dim / 2 inverse frequencies, None for all ones.
        rotary_dim: leading dimensions of a head that are rotated; None for all.
        rope_factor: multiplies sines and cosines. rope_local_theta: the unscaled rotary base of layers with a window,
            where it differs. layers_without_rope: layers whose queries and keys are not rotated.
        windows: sliding window of each layer, in keys with the row's own included; 0 for full attention. Empty where
            all layers have full attention.
        layers_without_mlp: layers that are attention or a state alone. sublayers: the number of each layer's attention
            or state in files that number feed-forwards apart (`sublayers.py`); empty for all others.
        layer_sizes: of each layer, where they differ; `head_dim`, `num_key_value_heads` and `intermediate_size` are
            then the largest. Empty where all layers are alike (see `sizes`).
        hidden_size_per_layer_input: width of the embeddings that each layer has of its own (Gemma 4); 0 for none.
        layer_scalars: whether each layer's output is multiplied by a number of its own.
        latent: latent attention in place of the projections of queries, keys and values.
        attention_bias: of query, key and value. attention_out_bias: of the output projection.
        qk_norm: RMS norms of queries and keys, over each head or over ``all`` of them together (`qk_norm_over`);
            applied after the rotation if `qk_norm_after_rope`.
            value_norm: RMS norms of values over each head, without weights.
        norm: RMS norm, or ``layer`` norm with mean subtraction and, if `norm_bias`, a bias. pre_norms, post_norms:
            norms before and after attention and feed-forward; a post-norm is applied before the residual is added.
        parallel: attention and feed-forward read the same hidden states, and what both give is added.
        mlp: ``gated_clamped`` is gpt-oss's g sigmoid(A g) (clamp(up, -L, L) + 1), g = min(gate, L); see `SWIGLU_LIMIT`.
            ``relu2`` is max(up, 0)^2.
        attention_gate: attention's output is multiplied by the sigmoid of one more projection, ``self_attn.g_proj``.
        attention_sinks: one more score per head and row, of a key without a value.
        query_growth, query_growth_every: g (0 for none) and n of the factor 1 + g ln(1 + floor(position / n)) on
            queries (Llama 4, Ministral 3).
        attention_scale: factor on attention scores; None for head_dim^-1/2. attention_softcap, logit_softcap: c of
            c tanh(x / c); 0 for none.
        recurrence: layers that have a state in place of attention.
        embedding_scale, residual_scale, logit_scale: factors on embeddings, on the outputs of attention and
            feed-forward, and on logits.
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
    rope_theta: float = DEFAULT_THETA
    rope_inv_freq_scale: tuple[float, ...] | None = None
    rotary_dim: int | None = None
    rope_factor: float = 1.0
    rope_local_theta: float | None = None
    layers_without_rope: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    layers_without_mlp: tuple[int, ...] = ()
    sublayers: tuple[int, ...] = ()
    layer_sizes: tuple[LayerSizes, ...] = ()
    hidden_size_per_layer_input: int = 0
    layer_scalars: bool = False
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    qk_norm_over: Literal["head", "all"] = "head"
    qk_norm_after_rope: bool = False
    value_norm: bool = False
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = True
    pre_norms: bool = True
    post_norms: bool = False
    parallel: bool = False
    mlp: Literal["gated_silu", "gated_gelu_tanh", "gated_clamped", "gelu_tanh", "gelu", "relu2"] = "gated_silu"
    position_embedding: Literal["rotary", "learned"] = "rotary"
    attention_gate: bool = False
    attention_sinks: bool = False
    query_growth: float = 0.0
    query_growth_every: int = 1
    attention_scale: float | None = None
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    experts: Experts | None = None
    recurrence: Recurrence | None = None
    latent: LatentAttention | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                     "num_key_value_heads", "head_dim", "max_position_embeddings"):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= LARGEST:
                raise refuse(name, f"{shown(value)} is not a whole number from 1 to {LARGEST}")
        if self.layer_sizes and len(self.layer_sizes) != self.num_hidden_layers:
            raise refuse("layer_sizes", f"{len(self.layer_sizes)} of them for {self.num_hidden_layers} layers")
        for sizes in self.layer_sizes or (self.sizes(0),):
            if self.num_attention_heads % sizes.num_key_value_heads:
                raise refuse("num_key_value_heads", f"{sizes.num_key_value_heads} does not divide the query heads")
            if self.position_embedding == "rotary" and sizes.head_dim % 2:
                raise refuse("head_dim", f"{sizes.head_dim} is odd, rotary positions need an even one")
        if self.windows and len(self.windows) != self.num_hidden_layers:
            raise refuse("windows", f"{len(self.windows)} of them for {self.num_hidden_layers} layers")

    @classmethod
    def from_hf(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """The config of a ``config.json``, as old and new transformers versions write it.

        Raises:
            UnsupportedModel: naming the field, when the architecture or one of its settings is not implemented.
        """
        inner = values.get("text_config")
        if isinstance(inner, Mapping) and inner.get("model_type") in FAMILIES:  # the language model of a multimodal one
            ids = {name: values[name] for name in ("bos_token_id", "eos_token_id") if values.get(name) is not None}
            tied = {"tie_word_embeddings": True} if values.get("tie_word_embeddings") is True else {}
            values = {**inner, **ids, **tied}
        model_type = _OTHER_NAMES.get(str(values.get("model_type")), values.get("model_type"))
        if not isinstance(model_type, str) or model_type not in FAMILIES:
            raise unknown_architecture("model_type", model_type)
        return _from_hf(FAMILIES[model_type], values)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]],
                  rope_factors: tuple[float, ...] | None = None) -> "ModelConfig":  # fmt: skip
        """The config of a GGUF file.

        Args:
            metadata: the file's key-value pairs.
            shapes: tensor name (GGUF's) to shape, outermost dimension first; shows which optional parts exist.
            rope_factors: divisors of the inverse frequencies, where the file has a tensor of them.

        Raises:
            UnsupportedModel: naming the key, when the architecture or one of its settings is not implemented.
        """
        return _from_gguf(family_of_gguf(metadata), metadata, shapes, rope_factors)

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward has a gate projection."""
        return self.mlp.startswith("gated")

    @property
    def has_plain_layers(self) -> bool:
        """Whether layers have the parts of Llama's, dense or with experts: pre-norms, full attention, no soft caps."""
        return all(getattr(self, part.name) == part.default for part in _PARTS_OF_LAYERS)

    @property
    def dense_size(self) -> int:
        """Width of the feed-forward of layers without experts."""
        return self.experts.dense_intermediate_size if self.experts else self.intermediate_size

    @property
    def value_dim(self) -> int:
        """Size of a head's value in the product after attention."""
        return self.latent.v_head_dim if self.latent else self.head_dim

    def of_prediction(self) -> "ModelConfig":
        """The config of a layer for multi-token prediction: one with full attention, and experts where layers have."""
        experts = None if self.experts is None else replace(self.experts, first_k_dense_replace=0)
        return replace(self, num_hidden_layers=1, windows=(), layers_without_rope=(), layers_without_mlp=(),
                       sublayers=(), layer_sizes=(), recurrence=None, experts=experts)  # fmt: skip

    def window(self, layer: int) -> int:
        """Sliding window of `layer` in keys; 0 for full attention."""
        return self.windows[layer] if self.windows else 0

    def sizes(self, layer: int) -> LayerSizes:
        """The sizes of `layer`."""
        if self.layer_sizes:
            return self.layer_sizes[layer]
        inner = 0 if layer in self.layers_without_mlp else self.intermediate_size
        return LayerSizes(self.head_dim, self.num_key_value_heads, inner, layer)

    def file_number(self, layer: int, is_mlp: bool) -> int:
        """The number that files give the feed-forward (`is_mlp`) of `layer`, or what is before it."""
        return self.sublayers[layer] + is_mlp if self.sublayers else layer

    @property
    def num_file_layers(self) -> int:
        """Number of layers as files count them."""
        last = self.num_hidden_layers - 1
        return 1 + self.file_number(last, is_mlp=last not in self.layers_without_mlp)

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """Numbers of the layers with experts; ascending."""
        first = self.experts.first_k_dense_replace if self.experts else self.num_hidden_layers
        return tuple(i for i in range(first, self.num_hidden_layers) if i not in self.layers_without_mlp)

    def with_sources(self, layers: Sequence[int]) -> tuple[int, ...]:
        """`layers`, and those whose keys and values they read, in ascending order."""
        return tuple(sorted({*layers, *(self.sizes(layer).cache_layer for layer in layers)}))

    @property
    def num_cache_layers(self) -> int:
        """Number of layers whose keys and values are kept."""
        return max((one.cache_layer + 1 for one in self.layer_sizes), default=len(self.attention_layers))

    @property
    def head_dims(self) -> frozenset[int]:
        """Every dimension of a head that some layer has."""
        return frozenset(one.head_dim for one in self.layer_sizes) or frozenset((self.head_dim,))

    @property
    def head_groups(self) -> frozenset[int]:
        """Every number of query heads that share a key head in some layer."""
        keys = frozenset(one.num_key_value_heads for one in self.layer_sizes) or {self.num_key_value_heads}
        return frozenset(self.num_attention_heads // heads for heads in keys)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Numbers of the layers with attention, which have keys and values; ascending."""
        recurrent = self.recurrence.layers if self.recurrence else ()
        return tuple(i for i in range(self.num_hidden_layers) if i not in recurrent)

    @property
    def layer_places(self) -> tuple[int, ...]:
        """Of each layer its index among the layers with attention, or among the recurrent ones."""
        recurrent = self.recurrence.layers if self.recurrence else ()
        attending = self.attention_layers
        every = range(self.num_hidden_layers)
        return tuple(recurrent.index(i) if i in recurrent else attending.index(i) for i in every)


_OF_PLAIN_LAYERS = frozenset((
    "rope_theta", "rope_inv_freq_scale", "rope_local_theta", "tie_word_embeddings", "attention_bias",
    "attention_out_bias", "mlp_bias", "qk_norm", "norm_bias", "query_growth_every", "embedding_scale", "logit_scale",
    "logit_softcap", "bos_token_id", "eos_token_ids", "experts",
))  # fmt: skip
"""Fields in which layers of Llama's form may differ, or that are not about layers. A new field is another form."""
_PARTS_OF_LAYERS = tuple(
    part for part in fields(ModelConfig) if part.default is not MISSING and part.name not in _OF_PLAIN_LAYERS
)


def _from_hf(family: Family, values: Mapping[str, Any]) -> ModelConfig:
    renamed = {ours: values[theirs] for ours, theirs in family.keys.items() if values.get(theirs) is not None}
    fields = Fields({**values, **renamed}, family.defaults)
    activation = family.keys.get("hidden_act", "hidden_act")
    if activation in values:
        fields.expect(activation, *family.activation)
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    head_dim = fields.whole("head_dim", max(hidden // heads, 1), most=_WIDEST_HEAD)
    longest = fields.whole("max_position_embeddings")
    bias = fields.flag("attention_bias", False)
    default_width = {"default": 4 * hidden} if family.model_type == "gpt2" else {}
    experts, inner = experts_from_hf(family.model_type, fields) or (
        None, fields.whole("intermediate_size", **default_width)
    )  # fmt: skip
    vocab_size = fields.whole("vocab_size")
    eps = "norm_eps" if "norm_eps" in family.keys else "rms_norm_eps"
    own: dict[str, Any] = {
        "model_type": family.model_type, "vocab_size": vocab_size, "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": fields.whole("num_key_value_heads", heads), "head_dim": head_dim,
        "norm_eps": fields.number(eps), "max_position_embeddings": longest,
        "tie_word_embeddings": fields.flag("tie_word_embeddings", False), "attention_bias": bias,
        "attention_out_bias": bias, "mlp_bias": fields.flag("mlp_bias", False), "experts": experts,
        "bos_token_id": _token("bos_token_id", fields.optional_whole("bos_token_id"), None),
        "eos_token_ids": _eos_ids(fields, vocab_size),
    }  # fmt: skip
    own |= family.parts(fields) | (latent_from_hf(fields) if family.latent else {})
    latent: LatentAttention | None = own.get("latent")
    if latent is not None:
        own |= rope_from_hf(fields, latent.qk_rope_head_dim, longest)
        if own["rotary_dim"]:
            raise refuse("partial_rotary_factor", f"{family.model_type} turns all of qk_rope_head_dim")
        own["rotary_dim"] = latent.qk_rope_head_dim
    elif _turns(own):
        dim = own["layer_sizes"][-1].head_dim if "layer_sizes" in own else head_dim
        own |= rope_from_hf(fields, dim, longest)
    own |= windows_from_hf(family, fields, layers, own["max_position_embeddings"])
    if own.get("rotary_dim") and latent is None and not family.turns_part:
        raise refuse("partial_rotary_factor", f"{family.model_type} turns whole heads")
    return _with_attention(ModelConfig(**own))


def _with_attention(config: ModelConfig) -> ModelConfig:
    """`config`, which must have a layer with attention: caches are made of pages of keys."""
    if not config.attention_layers:
        raise refuse("layer_types", "no layer has attention, which is not implemented")
    return config


def _turns(fields: Mapping[str, Any]) -> bool:
    """Whether a layer has rotary positions; files state settings of them in any case."""
    still = len(fields.get("layers_without_rope", ())) == fields["num_hidden_layers"]
    return fields.get("position_embedding") != "learned" and not still


def _token(name: str, number: int | None, vocab_size: int | None) -> int | None:
    if number is not None and vocab_size is not None and number >= vocab_size:
        raise refuse(name, f"{number} is outside the vocabulary of {vocab_size}")
    return number


def _eos_ids(fields: Fields, vocab_size: int) -> tuple[int, ...]:
    """End-of-sequence ids, given as one number or a list. Raises UnsupportedModel for an id outside the vocabulary."""
    name = "eos_token_id"
    several = isinstance(fields.get(name, None), (list, tuple))
    ids = fields.list(name, int, _MOST_EOS) if several else [fields.optional_whole(name)]
    for number in ids:
        if number is not None and number < 0:
            raise refuse(name, f"{number} is no token")
        _token(name, number, vocab_size)
    return tuple(number for number in ids if number is not None)


def _from_gguf(family: Family, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]],
               rope_factors: tuple[float, ...] | None) -> ModelConfig:  # fmt: skip
    prefix = f"{metadata['general.architecture']}."
    own = Fields({key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)})
    heads, hidden = own.whole("attention.head_count"), own.whole("embedding_length")
    layers = own.whole("block_count", most=MOST_LAYERS) - own.whole("nextn_predict_layers", 0, least=0)
    head_dim = own.whole("attention.key_length", max(hidden // heads, 1), most=_WIDEST_HEAD)
    if not family.latent:
        own.expect("attention.value_length", head_dim)
    longest = own.whole("context_length")
    experts, inner = experts_from_gguf(family.model_type, own, shapes, layers) or (
        None, largest(own, "feed_forward_length")
    )  # fmt: skip
    eps = "attention.layer_norm_epsilon" if "attention.layer_norm_epsilon" in own else _RMS_EPSILON
    vocab_size = shapes.get("token_embd.weight", (0,))[0]
    fields: dict[str, Any] = {
        "model_type": family.model_type, "vocab_size": vocab_size, "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": largest(own, "attention.head_count_kv", heads), "head_dim": head_dim,
        "norm_eps": own.number(eps),
        "max_position_embeddings": longest, "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": "blk.0.attn_q.bias" in shapes or "blk.0.attn_qkv.bias" in shapes,
        "attention_out_bias": "blk.0.attn_output.bias" in shapes, "mlp_bias": "blk.0.ffn_up.bias" in shapes,
        "experts": experts,
    }  # fmt: skip
    fields |= family.gguf_parts(own) | _gguf_tokens(metadata, vocab_size)
    for name in () if "layer_sizes" in fields else PER_LAYER:
        if isinstance(own.get(name, None), list) and len({*own.list(name, int, MOST_LAYERS)} - {0}) != 1:
            raise refuse(name, f"layers of different sizes are not implemented for {family.architecture}")
    if family.latent:
        fields |= latent_from_gguf(own)
        own, head_dim = yarn_of_latent(own), fields["head_dim"]
    if "blk.0.attn_q_norm.weight" in shapes and family.norms_asked:
        fields["qk_norm"] = True
    counts, recurrent = own.get("attention.head_count_kv", None), fields.get("recurrence")
    if isinstance(counts, list) and "sublayers" not in fields:
        without = tuple(i for i, count in enumerate(counts[:layers]) if not count)
        if len(counts) < layers or without != (recurrent.layers if recurrent else ()):
            problem = f"{len(counts)} for {layers} layers, {len(without)} of them without attention"
            raise refuse("attention.head_count_kv", f"{problem}, is not implemented for {family.architecture}")
    if "blk.0.attn_q_norm.weight" in shapes and not fields.get("qk_norm"):
        raise refuse("attn_q_norm", f"a norm of queries is not implemented for {family.architecture}")
    if _turns(fields):
        fields |= rope_from_gguf(own, head_dim, longest, rope_factors, family.yarn_truncates)
    fields |= windows_from_gguf(family, own, layers, fields["max_position_embeddings"])
    if "layer_sizes" in fields:
        fields["layer_sizes"] = values_apart(fields["layer_sizes"], fields["windows"], shapes)
    if family.pairs and fields.get("rotary_dim"):
        raise refuse("rope.dimension_count", f"{fields['rotary_dim']} of {head_dim} is not implemented")
    return _with_attention(ModelConfig(**fields))


def _gguf_tokens(metadata: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    """`bos_token_id`, and `eos_token_ids`: those that the file names, then the others of `_ENDS`."""
    fields, prefix = Fields(metadata), "tokenizer.ggml."
    bos = fields.optional_whole(f"{prefix}bos_token_id")
    ids = [fields.optional_whole(f"{prefix}{name}_token_id") for name in ("eos", "eot", "eom")]
    listed = metadata.get(f"{prefix}tokens")
    tokens = listed if isinstance(listed, list) else []
    named = [_token(f"{prefix}eos_token_id", i, max(vocab_size, len(tokens))) for i in ids if i is not None]
    ends = _HARMONY_ENDS if "<|return|>" in tokens and "<|call|>" in tokens else _ENDS
    others = [i for i, token in enumerate(tokens) if isinstance(token, str) and token in ends]
    return {"bos_token_id": bos, "eos_token_ids": tuple(dict.fromkeys([*named, *others]))}
