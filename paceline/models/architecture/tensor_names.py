"""Names and shapes of every weight, in the naming that all families share (see `families.py`).

Linear layers are [out, in]; norm weights are the factors themselves (no offset). Readers check completeness against
this list, and executors load by it; `sources.py` maps it to the tensors of a file.
"""

from collections.abc import Iterator

from paceline.errors import CorruptWeights
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.experts import expert_shapes
from paceline.models.architecture.latent import latent_shapes
from paceline.models.architecture.layer_sizes import LayerSizes
from paceline.models.architecture.recurrence import recurrent_shapes

Named = tuple[str, tuple[int, ...]]


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name to shape of every tensor the model needs, in order of use; a tied output head is not among them."""
    return dict(each_tensor(config))


def each_tensor(config: ModelConfig) -> Iterator[Named]:
    """The items of `tensor_shapes` one by one, for configs whose sizes may be absurd."""
    hidden = config.hidden_size
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    if config.position_embedding == "learned":
        yield "model.position_embeddings.weight", (config.max_position_embeddings, hidden)
    if config.hidden_size_per_layer_input:
        width = config.num_hidden_layers * config.hidden_size_per_layer_input
        yield "model.embed_tokens_per_layer.weight", (config.vocab_size, width)
        yield "model.per_layer_model_projection.weight", (width, hidden)
        yield "model.per_layer_projection_norm.weight", (config.hidden_size_per_layer_input,)
    for i in range(config.num_hidden_layers):
        for name, shape in _layer(config, i):
            yield f"model.layers.{i}.{name}", shape
    yield from _norm(config, "model.norm")
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)


def check_depth(config: ModelConfig, num_tensors: int, source: object) -> None:
    """Refuse a damaged number of layers before anything is allocated per layer.

    Raises:
        CorruptWeights: naming `source`, when there are more layers than tensors.
    """
    if config.num_hidden_layers > num_tensors:
        raise CorruptWeights(
            f"{source}: the configuration says {config.num_hidden_layers} layers, but there are only {num_tensors} "
            "tensors; download the model again"
        )


def _layer(config: ModelConfig, number: int) -> Iterator[Named]:
    sizes = config.sizes(number)
    if config.pre_norms:
        yield from _norm(config, "input_layernorm")
    if config.recurrence and number in config.recurrence.layers:
        yield from recurrent_shapes(config.recurrence, config.hidden_size)
    else:
        yield from _attention(config, sizes)
    if config.post_norms:
        yield from _norm(config, "self_attn.out_norm")
    if number in config.layers_without_mlp:
        return
    if config.pre_norms:
        yield from _norm(config, "post_attention_layernorm")
    if config.experts and number >= config.experts.first_k_dense_replace:
        yield from expert_shapes(config.experts, config.hidden_size, config.intermediate_size, config.is_gated)
    else:
        yield from _feed_forward(config, sizes.intermediate_size if config.layer_sizes else config.dense_size)
    if config.post_norms:
        yield from _norm(config, "mlp.out_norm")
    if width := config.hidden_size_per_layer_input:
        yield "per_layer_input_gate.weight", (width, config.hidden_size)
        yield "per_layer_projection.weight", (config.hidden_size, width)
        yield from _norm(config, "post_per_layer_input_norm")
    if config.layer_scalars:
        yield "layer_scalar.weight", (1,)


def _norm(config: ModelConfig, name: str) -> Iterator[Named]:
    yield f"{name}.weight", (config.hidden_size,)
    if config.norm == "layer" and config.norm_bias:
        yield f"{name}.bias", (config.hidden_size,)


def _attention(config: ModelConfig, sizes: LayerSizes) -> Iterator[Named]:
    if config.latent:
        yield from latent_shapes(config.latent, config.hidden_size, config.num_attention_heads)
        return
    query, key = config.num_attention_heads * sizes.head_dim, sizes.num_key_value_heads * sizes.head_dim
    for part, rows, exists in (("q_proj", query, True), ("k_proj", key, sizes.has_keys),
                               ("v_proj", key, sizes.has_values)):  # fmt: skip
        if exists:
            yield from _linear(f"self_attn.{part}", rows, config.hidden_size, config.attention_bias)
    if config.attention_gate:
        yield "self_attn.g_proj.weight", (query, config.hidden_size)
    if config.qk_norm:
        over_all = config.qk_norm_over == "all"
        yield "self_attn.q_norm.weight", (query if over_all else sizes.head_dim,)
        if sizes.has_keys:
            yield "self_attn.k_norm.weight", (key if over_all else sizes.head_dim,)
    yield from _linear("self_attn.o_proj", config.hidden_size, query, config.attention_out_bias)
    if config.attention_sinks:
        yield "self_attn.sinks.weight", (config.num_attention_heads,)


def _feed_forward(config: ModelConfig, inner: int) -> Iterator[Named]:
    hidden = config.hidden_size
    for part in ("gate_proj", "up_proj") if config.is_gated else ("up_proj",):
        yield from _linear(f"mlp.{part}", inner, hidden, config.mlp_bias)
    yield from _linear("mlp.down_proj", hidden, inner, config.mlp_bias)


def _linear(name: str, rows: int, columns: int, bias: bool) -> Iterator[Named]:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)
