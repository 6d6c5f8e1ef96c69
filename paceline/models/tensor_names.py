"""Names and shapes of every weight of a family, and what GGUF calls them.

The one table for the readers' completeness checks and for each executor's loading. Names and shapes are
transformers'; linear layers are [out, in], except GPT-2's, which transformers keeps as [in, out].
"""

from collections.abc import Iterator, Mapping

from paceline.errors import CorruptWeights
from paceline.models.config import ModelConfig
from paceline.models.experts import expert_shapes

_LLAMA_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LLAMA_LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_GPT2_TOP = {
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm", "lm_head": "output",
}  # fmt: skip
_GPT2_LAYER = {
    "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name to shape of every tensor the model needs, in order of use; a tied output head is not among them."""
    shapes = dict(_gpt2_shapes(config) if config.model_type == "gpt2" else _llama_shapes(config))
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def gguf_name(config: ModelConfig, name: str) -> str:
    """GGUF's name of the tensor transformers calls `name`."""
    is_gpt2 = config.model_type == "gpt2"
    stem, kind = name.rsplit(".", 1)
    top, layer, prefix = (_GPT2_TOP, _GPT2_LAYER, "transformer.h.") if is_gpt2 else (
        _LLAMA_TOP, _LLAMA_LAYER, "model.layers."
    )  # fmt: skip
    if stem in top:
        return f"{top[stem]}.{kind}"
    number, part = stem.removeprefix(prefix).split(".", 1)
    return f"blk.{number}.{layer[part]}.{kind}"


def check_depth(config: ModelConfig, num_tensors: int, source: object) -> None:
    """Refuse a damaged number of layers before anything is made for each of them.

    Raises:
        CorruptWeights: naming `source`, when there are more layers than tensors.
    """
    if config.num_hidden_layers > num_tensors:
        raise CorruptWeights(
            f"{source}: the configuration says {config.num_hidden_layers} layers, but there are only {num_tensors} "
            "tensors; download the model again"
        )


def base_prefix(config: ModelConfig) -> str:
    """What stands before every name but the head's; checkpoints of the bare model leave it out."""
    return "transformer." if config.model_type == "gpt2" else "model."


def check_complete(config: ModelConfig, found: Mapping[str, tuple[int, ...]], source: object) -> None:
    """Compare the tensors `found` (name to shape) with the ones the model needs.

    Raises:
        CorruptWeights: naming `source` and the first tensors that are missing or have another shape.
    """
    expected = tensor_shapes(config)
    missing = [name for name in expected if name not in found]
    if missing:
        raise CorruptWeights(
            f"{source}: {len(missing)} of {len(expected)} tensors are missing, first {', '.join(missing[:3])}; "
            "download the model again"
        )
    for name, shape in expected.items():
        if tuple(found[name]) != shape:
            raise CorruptWeights(
                f"{source}: {name} has shape {tuple(found[name])}, the configuration says {shape}; "
                "configuration and weights are of different models, download both again"
            )


def _llama_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,)
        for part, rows in (("q_proj", query), ("k_proj", key), ("v_proj", key)):
            yield f"{layer}self_attn.{part}.weight", (rows, hidden)
            if config.attention_bias:
                yield f"{layer}self_attn.{part}.bias", (rows,)
        if config.qk_norm:
            yield layer + "self_attn.q_norm.weight", (config.head_dim,)
            yield layer + "self_attn.k_norm.weight", (config.head_dim,)
        yield layer + "self_attn.o_proj.weight", (hidden, query)
        if config.attention_out_bias:
            yield layer + "self_attn.o_proj.bias", (hidden,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        if config.experts:
            for name, shape in expert_shapes(config.model_type, config.experts, hidden, inner):
                yield layer + name, shape
            continue
        for part, rows, columns in (
            ("gate_proj", inner, hidden),
            ("up_proj", inner, hidden),
            ("down_proj", hidden, inner),
        ):
            yield f"{layer}mlp.{part}.weight", (rows, columns)
            if config.mlp_bias:
                yield f"{layer}mlp.{part}.bias", (rows,)
    yield "model.norm.weight", (hidden,)


def _gpt2_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    yield "transformer.wte.weight", (config.vocab_size, hidden)
    yield "transformer.wpe.weight", (config.max_position_embeddings, hidden)
    for i in range(config.num_hidden_layers):
        layer = f"transformer.h.{i}."
        for norm in ("ln_1", "ln_2"):
            yield f"{layer}{norm}.weight", (hidden,)
            yield f"{layer}{norm}.bias", (hidden,)
        for part, rows, columns in (
            ("attn.c_attn", hidden, 3 * hidden), ("attn.c_proj", hidden, hidden),
            ("mlp.c_fc", hidden, inner), ("mlp.c_proj", inner, hidden),
        ):  # fmt: skip
            yield f"{layer}{part}.weight", (rows, columns)
            yield f"{layer}{part}.bias", (columns,)
    yield "transformer.ln_f.weight", (hidden,)
    yield "transformer.ln_f.bias", (hidden,)
