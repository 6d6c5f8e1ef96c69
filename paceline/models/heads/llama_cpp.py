"""Writes a head for llama.cpp: one GGUF file of architecture ``eagle3`` or ``dflash`` (for DSpark, too).

Keys and names are those of llama.cpp's converter (conversion/llama.py and qwen.py, ``src/models/{eagle3,dflash}.cpp``
of 2026-09). Features that it does not support are refused here, since it would ignore them. The vocabulary is copied
from the target's GGUF file. Not for reading such files.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.disk import in_one_move
from paceline.errors import InvalidParameter
from paceline.models.architecture.config import ModelConfig
from paceline.models.heads.layouts.base import TargetTables
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.heads.shapes import layer_of

_ARCHITECTURES = {"eagle3": "eagle3", "dflash": "dflash", "dspark": "dflash"}
_LAYER = {
    "input_layernorm.weight": "attn_norm.weight", "hidden_norm.weight": "attn_norm_2.weight",
    "self_attn.q_proj.weight": "attn_q.weight", "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight", "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight", "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight", "mlp.down_proj.weight": "ffn_down.weight",
}  # fmt: skip
_TOP = {
    "fc.weight": "fc.weight", "input_norm.weight": "enc.output_norm.weight", "hidden_norm.weight":
    "enc.output_norm.weight", "norm.weight": "output_norm.weight", "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight", "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight", "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
}  # fmt: skip
_MOST_TAPS = 3


def write_gguf(record: HeadRecord, path: Path, vocabulary: Mapping[str, Any], tables: TargetTables,
               storage: str = "BF16") -> Path:  # fmt: skip
    """Write `record` to the file `path` atomically.

    Args:
        vocabulary: the target's GGUF metadata; its ``tokenizer.`` keys are copied.
        tables: the target's tables, whose head rows are copied for a draft vocabulary.
        storage: storage of matrices, ``BF16`` or ``F32``; norms stay in float32.

    Raises:
        InvalidParameter: llama.cpp does not support the head, or the target has no GGUF vocabulary.
    """
    from gguf import GGUFWriter, LlamaFileType

    _check(record, vocabulary)
    architecture = _ARCHITECTURES[record.config.family]
    with in_one_move(path) as file:
        writer = GGUFWriter(file, architecture)
        try:
            writer.add_file_type(LlamaFileType.MOSTLY_BF16 if storage == "BF16" else LlamaFileType.ALL_F32)
            for key, value in (*_pairs(record.config, architecture), *_vocabulary(record.config, vocabulary)):
                _add(writer, key, value)
            for tensor, values in _tensors(record, tables):
                _add_tensor(writer, tensor, values, storage)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()
    return path


def _add_tensor(writer: Any, name: str, values: np.ndarray, storage: str) -> None:
    from gguf import GGMLQuantizationType, quants

    if values.dtype == np.int64:
        writer.add_tensor(name, values, raw_dtype=GGMLQuantizationType.I64)
        return
    kind = GGMLQuantizationType[storage if values.ndim == 2 else "F32"]
    writer.add_tensor(name, quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)


def _check(record: HeadRecord, vocabulary: Mapping[str, Any]) -> None:
    config = record.config
    if config.family not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise InvalidParameter("family", f"{config.family} is not drafted with by llama.cpp", f"choose one of: {known}")
    problems = {"eagle3": _eagle3_problems, "dflash": _dflash_problems}[_ARCHITECTURES[config.family]]
    for field, problem in problems(config, layer_of(config)):
        remedy = "convert with --one-norm" if config.fc_norm else "train a head without it"
        raise InvalidParameter(field, f"{problem}, which llama.cpp does not compute", remedy)
    if "tokenizer.ggml.tokens" not in vocabulary:
        raise InvalidParameter("model", "has no GGUF vocabulary to copy", "name the target by its GGUF file (-m)")


def _eagle3_problems(config: HeadConfig, layer: ModelConfig) -> Iterator[tuple[str, str]]:
    if config.fc_norm:
        yield "fc_norm", "normalises every tap by itself"
    if config.norm_output:
        yield "norm_output", "feeds the normed state back"
    if len(config.taps) != _MOST_TAPS:
        yield "taps", f"are {len(config.taps)}, not {_MOST_TAPS}"
    if config.num_layers != 1:
        yield "num_layers", f"are {config.num_layers}"
    if layer.qk_norm:
        yield "qk_norm", "normalises queries and keys"
    yield from _bias_problems(config, layer)


def _dflash_problems(config: HeadConfig, layer: ModelConfig) -> Iterator[tuple[str, str]]:
    if not layer.qk_norm:
        yield "qk_norm", "is missing from its layers"
    if layer.hidden_size != config.target.hidden_size:
        yield "hidden_size", f"is {layer.hidden_size} beside a target of {config.target.hidden_size}"
    if config.markov_rank and config.variant not in ("", "vanilla"):
        yield "markov_head_type", f"is {config.variant}"
    if config.confidence and not (config.markov_rank and config.confidence_markov):
        yield "confidence", "does not read the token before"
    if config.embedding_scale != 1.0:
        yield "embedding_scale", "multiplies the embeddings that a block reads"
    if config.family == "dflash" and config.sample_from_anchor:
        yield "sample_from_anchor", "drafts from the anchor's row without a Markov head"
    yield from _bias_problems(config, layer)


def _bias_problems(config: HeadConfig, layer: ModelConfig) -> Iterator[tuple[str, str]]:
    if config.fc_bias or layer.attention_bias or layer.attention_out_bias or layer.mlp_bias:
        yield "bias", "is added by a linear layer"


def _pairs(config: HeadConfig, architecture: str) -> Iterator[tuple[str, Any]]:
    """Key-value pairs that describe the head. Layer numbers name the layer that reads a state, as taps do here."""
    layer = layer_of(config)
    yield "general.type", "model"
    yield "general.name", f"{config.family} draft of {config.target.name}"
    values: dict[str, Any] = {
        "block_count": config.num_layers, "context_length": layer.max_position_embeddings,
        "embedding_length": layer.hidden_size, "feed_forward_length": layer.intermediate_size,
        "attention.head_count": layer.num_attention_heads, "attention.head_count_kv": layer.num_key_value_heads,
        "attention.key_length": layer.head_dim, "attention.value_length": layer.head_dim,
        "attention.layer_norm_rms_epsilon": float(layer.norm_eps), "rope.freq_base": float(layer.rope_theta),
        "rope.dimension_count": layer.head_dim, "vocab_size": config.target.vocab_size,
        "target_layers": list(config.taps),
    }  # fmt: skip
    if architecture == "eagle3":
        values |= {
            "norm_before_residual": config.norm_before_residual, "norm_before_fc": config.norm_before_fc,
            "target_hidden_size": config.target.hidden_size,
        }  # fmt: skip
    else:
        values["block_size"] = config.block_size
    if config.family == "dspark":
        values |= {"sample_from_anchor": config.sample_from_anchor, "has_confidence_head": config.confidence}
    for key, value in values.items():
        yield f"{architecture}.{key}", value


def _vocabulary(config: HeadConfig, metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in metadata.items():
        if key.startswith("tokenizer.") and key != "tokenizer.ggml.mask_token_id":
            yield key, value
    if config.mask_token_id is not None:
        yield "tokenizer.ggml.mask_token_id", config.mask_token_id


def _add(writer: Any, key: str, value: Any) -> None:
    """Add a key-value pair with the GGUF type that converters use."""
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    adders.get(type(value), writer.add_array)(key, value)


def _tensors(record: HeadRecord, tables: TargetTables) -> Iterator[tuple[str, np.ndarray]]:
    config, layer = record.config, layer_of(record.config)
    interleaves = config.family == "eagle3"
    for name, values in record.tensors.items():
        if interleaves and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = _interleaved(values, layer.head_dim)
        yield _renamed(name), values
    if not config.owns_head and record.draft_ids is not None:
        yield "output.weight", tables.head_rows(record.draft_ids)
    if record.draft_ids is not None:
        yield "d2t", record.draft_ids.astype(np.int64)
    if layer.rope_inv_freq_scale is not None:
        yield "rope_freqs.weight", (1.0 / np.asarray(layer.rope_inv_freq_scale)).astype(np.float32)


def _renamed(name: str) -> str:
    if not name.startswith("layers."):
        return _TOP[name]
    _, number, part = name.split(".", 2)
    return f"blk.{number}.{_LAYER[part]}"


def _interleaved(values: np.ndarray, head_dim: int) -> np.ndarray:
    """Query or key rows reordered from halves (i, i + head_dim / 2) to pairs (2i, 2i + 1), llama.cpp's order."""
    halves = values.reshape(-1, 2, head_dim // 2, values.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
