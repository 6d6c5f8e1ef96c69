"""Tiny random models, hand-made weight files and flat rows for the tests of this folder."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numba import njit

from paceline.models.architecture.config import ModelConfig
from paceline.models.base import PAGE_SIZE, Rows
from paceline.models.files.checkpoint import Checkpoint
from paceline.models.numba_executor import operand

VOCAB = 67
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


@njit
def _fill(x, source, count, depth):
    for row in range(count):
        operand.put(x, row, depth, 0, source, row * depth, depth)


def operand_of(rows: np.ndarray, kind: type = np.int8, fine: bool = False) -> operand.Operand:
    """[rows, depth] floats as activations of that element type."""
    x = operand.new_operand(rows.size, kind, fine)
    _fill(x, rows.reshape(-1), *rows.shape)
    return x


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def chain_rows(requests: Sequence[tuple[Sequence[int], int, Sequence[int]]]) -> Rows:
    """Rows of several requests, each (token ids, position of the first, its pages); logits of every row."""
    tokens, positions, slots, segments = [], [], [], []
    tables = np.full((len(requests), max(len(pages) for _, _, pages in requests)), -1, np.int32)
    for segment, (ids, start, pages) in enumerate(requests):
        tables[segment, : len(pages)] = pages
        for position, token in enumerate(ids, start):
            tokens.append(token)
            positions.append(position)
            slots.append(pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE)
            segments.append(segment)
    return _rows(tokens, positions, slots, segments, tables, np.array(positions) + 1, [()] * len(tokens))


def tree_rows(
    tokens: Sequence[int], parents: Sequence[int], prefix: int, pages: Sequence[int], first_slot: int
) -> Rows:
    """Rows of a draft tree after `prefix` committed tokens; node i's key goes to slot first_slot + i."""
    branches: list[tuple[int, ...]] = []
    for node, parent in enumerate(parents):
        branches.append((*(branches[parent] if parent >= 0 else ()), first_slot + node))
    positions = [prefix + len(branch) - 1 for branch in branches]
    slots = [first_slot + node for node in range(len(tokens))]
    table = np.array([pages], np.int32)
    return _rows(tokens, positions, slots, [0] * len(tokens), table, [prefix] * len(tokens), branches)


def _rows(tokens, positions, slots, segments, tables, natural, branches) -> Rows:
    branch_slots = np.full((len(tokens), max(map(len, branches))), -1, np.int32)
    for row, branch in enumerate(branches):
        branch_slots[row, : len(branch)] = branch
    return Rows(
        token_ids=np.asarray(tokens, np.int32),
        positions=np.asarray(positions, np.int32),
        slots=np.asarray(slots, np.int32),
        segments=np.asarray(segments, np.int32),
        page_tables=tables,
        natural_lengths=np.asarray(natural, np.int32),
        branch_slots=branch_slots,
        logit_rows=np.arange(len(tokens), dtype=np.int32),
    )


def interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a Llama query or key matrix in GGUF's order, spelled out row by row."""
    head_dim = len(values) // heads
    out = np.empty_like(values)
    for head in range(heads):
        for i in range(head_dim // 2):
            for half in (0, 1):
                out[head * head_dim + 2 * i + half] = values[head * head_dim + half * (head_dim // 2) + i]
    return out


def gguf_name(config: ModelConfig, name: str) -> str:
    """What the gguf package calls a tensor of a model whose names are Llama's."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
    found = names.get_name(name, (".weight", ".bias"))
    assert found is not None, name
    return found


def gguf_metadata(config: ModelConfig, vocabulary: dict | None = None) -> dict:
    """Key-value pairs a converter writes for `config`."""
    name = config.model_type
    values = {
        "general.architecture": name,
        f"{name}.block_count": config.num_hidden_layers,
        f"{name}.context_length": config.max_position_embeddings,
        f"{name}.embedding_length": config.hidden_size,
        f"{name}.feed_forward_length": config.intermediate_size,
        f"{name}.attention.head_count": config.num_attention_heads,
        f"{name}.attention.head_count_kv": config.num_key_value_heads,
        f"{name}.attention.layer_norm_rms_epsilon": config.norm_eps,
        f"{name}.rope.freq_base": config.rope_theta,
        f"{name}.attention.key_length": config.head_dim,
    }
    return values | (vocabulary or {})


def write_gguf(
    path: Path, metadata: dict, tensors: dict[str, np.ndarray], storage: dict[str, str] | None = None
) -> Path:
    """Write a GGUF file with the format's own writer; `storage` names the quantisation of single tensors.

    A tensor of bytes is rows of such blocks already.
    """
    writer = gguf.GGUFWriter(path, metadata.get("general.architecture", "none"))
    for key, value in metadata.items():
        add_pair(writer, key, value)
    for name, values in tensors.items():
        kind = gguf.GGMLQuantizationType[(storage or {}).get(name, "F32")]
        if values.dtype != np.uint8:
            values = gguf.quants.quantize(np.ascontiguousarray(values, dtype=np.float32), kind)
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_pair(writer: gguf.GGUFWriter, key: str, value) -> None:
    """Give `writer` one key-value pair in the type converters use; the architecture it writes itself."""
    if key == "general.architecture":
        return
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    adder = adders.get(type(value), writer.add_array)
    adder(key, value)


def as_gguf(
    path: Path, checkpoint: Checkpoint, vocabulary: dict | None = None, storage: dict[str, str] | None = None
) -> Path:
    """The model of `checkpoint`, whose names are Llama's, as a GGUF file; for other families see `converter.py`."""
    config = checkpoint.config
    tensors = {}
    for name in checkpoint.names():
        values = checkpoint.tensor(name)
        if config.model_type == "llama" and ".q_proj." in name:
            values = interleaved(values, config.num_attention_heads)
        if config.model_type == "llama" and ".k_proj." in name:
            values = interleaved(values, config.num_key_value_heads)
        tensors[gguf_name(config, name)] = values
    return write_gguf(path, gguf_metadata(config, vocabulary), tensors, storage)


def header_bytes(pairs: bytes, num_pairs: int, num_tensors: int = 0, version: int = 3) -> bytes:
    """The start of a GGUF file by hand, for files no writer would write."""
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs) + pairs
