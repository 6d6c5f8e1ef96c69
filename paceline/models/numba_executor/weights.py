"""Weights as the kernels read them: packed once, kept on disk, memory-mapped ever after.

`load_weights` converts a checkpoint to panels (`gemm.pack`) in the wanted type and stores them under the cache folder;
the next load maps the files and reads nothing. A conversion happens in a temporary folder that is renamed at its end,
so a half-written one is never trusted; one that was damaged later (`models/intact.py`) is made anew. Not for file
formats (`models/checkpoint.py`).
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paceline.errors import InvalidParameter, PacelineError, UnsupportedModel
from paceline.models.cache_dir import cache_dir
from paceline.models.checkpoint import Checkpoint
from paceline.models.config import ModelConfig
from paceline.models.experts import ExpertNames, expert_names
from paceline.models.intact import is_sealed, seal
from paceline.models.numba_executor.blocks.formats import FORMATS
from paceline.models.numba_executor.blocks.store import no_matrix, read_matrix, write_matrix
from paceline.models.numba_executor.experts import ExpertWeights
from paceline.models.numba_executor.forward import Shape
from paceline.models.numba_executor.gemm import PANEL, ZERO_BYTE, pack, padded_rows
from paceline.models.numba_executor.operand import GROUP
from paceline.types import Progress

Dtype = Literal["bfloat16", "float32", "int8", "w8a8", "gguf"]

STORED = {"bfloat16": np.uint16, "float32": np.float32, "int8": np.int8, "w8a8": np.uint8}
"""Types of panels of numbers; those of gguf are bytes of blocks."""
BLOCKS = "gguf"
"""The dtype of matrices in the blocks of a file."""
ROUNDS = ("w8a8", BLOCKS)
"""Dtypes that round activations, in groups of 32."""
LAYOUT = 3
"""Raise it when the packing changes: converted weights of another layout are made anew."""

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "mixtral")


def shape_of(config: ModelConfig) -> Shape:
    """Sizes for the kernels.

    Raises:
        UnsupportedModel: a family or a width the kernels do not cover; the torch executor runs it.
    """
    remedy = 'run it with executor="torch" (needs paceline[torch])'
    if config.model_type not in SUPPORTED_MODEL_TYPES:
        raise UnsupportedModel(f"model_type: the numba executor does not run {config.model_type!r}; {remedy}")
    shared = config.experts.shared_intermediate_size if config.experts else 0
    for name, value, size in (
        ("hidden_size", config.hidden_size, PANEL), ("intermediate_size", config.intermediate_size, PANEL),
        ("shared_expert_intermediate_size", shared, PANEL), ("head_dim", config.head_dim, 16),
    ):  # fmt: skip
        if value % size:
            raise UnsupportedModel(f"{name}: {value} is not a multiple of {size}; {remedy}")
    if config.mlp_bias or config.attention_out_bias:
        raise UnsupportedModel(f"mlp_bias, attention_out_bias: the numba executor has none; {remedy}")
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    return Shape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        qkv=padded_rows((heads + 2 * kv_heads) * dim),
        vocab=padded_rows(config.vocab_size),
        experts=config.experts.num_experts if config.experts else 0,
        top_k=config.experts.num_experts_per_tok if config.experts else 0,
        shared_inner=shared,
        norm_top_k=bool(config.experts and config.experts.norm_topk_prob),
    )


def load_weights(checkpoint: Checkpoint, dtype: str, progress: Progress | None = None) -> dict[str, Any]:
    """The fields of `forward.Weights` (rotary tables excepted) by name, memory-mapped.

    Raises:
        InvalidParameter: an unknown dtype, w8a8 or gguf with heads that are no multiple of 32, or gguf for weights that
            are not stored in blocks.
        UnsupportedModel: see `shape_of`.
        PacelineError: the disk is full; nothing half-written stays behind.
    """
    if dtype not in (*STORED, BLOCKS):
        raise InvalidParameter("dtype", f"{dtype!r} is unknown", f"use one of {', '.join(STORED)}, {BLOCKS}")
    shape_of(checkpoint.config)
    _check_rounding(checkpoint, dtype)
    folder = cache_dir() / "converted" / f"{checkpoint.fingerprint}-{dtype}-{LAYOUT}"
    if not is_sealed(folder):
        _remove(folder)
        _convert_into(folder, checkpoint, dtype, progress or (lambda done, total: None))
    return stored_arrays(folder, checkpoint.config, dtype)


def _check_rounding(checkpoint: Checkpoint, dtype: str) -> None:
    if dtype in ROUNDS and checkpoint.config.head_dim % GROUP:
        problem = f"{dtype} rounds {GROUP} values together, and {checkpoint.config.head_dim} per head cannot be cut so"
        raise InvalidParameter("dtype", problem, "use int8")
    if dtype == BLOCKS and checkpoint.storage not in FORMATS:
        problem = (
            f"gguf multiplies blocks as a file has them ({', '.join(FORMATS)}), and this one has {checkpoint.storage}"
        )
        raise InvalidParameter("dtype", problem, "use bfloat16, or w8a8 for speed")


def stored_arrays(folder: Path, config: ModelConfig, dtype: str, mapped: bool = True) -> dict[str, Any]:
    """What `convert` left in `folder`, read-only, memory-mapped or read."""
    arrays: dict[str, Any] = {path.stem: np.load(path, mmap_mode="r" if mapped else None).view(np.ndarray)
                              for path in folder.glob("*.npy")}  # fmt: skip
    for array in arrays.values():
        array.flags.writeable = False
    if dtype == BLOCKS:
        _gather_blocks(arrays, folder, mapped)
    if config.tie_word_embeddings:
        arrays["head"], arrays["head_scales"] = arrays["embedding"], arrays["embedding_scales"]
    experts = [arrays.pop(name, _nothing(name, dtype)) for name in ExpertWeights._fields]
    return {**arrays, "experts": ExpertWeights(*experts)}


def _gather_blocks(arrays: dict[str, Any], folder: Path, mapped: bool) -> None:
    """Put `Blocks` and empty scales in the place of the files of each matrix."""
    for name in [key.removesuffix("_formats") for key in arrays if key.endswith("_formats")]:
        del arrays[f"{name}_formats"], arrays[f"{name}_starts"]
        arrays[name], arrays[f"{name}_scales"] = read_matrix(folder, name, mapped), _nothing("scales", BLOCKS)


def _nothing(name: str, dtype: str) -> Any:
    """An empty array of the type that `name` has in models with experts, read-only as a mapped one is."""
    packed = name in ("shared_gate_up", "shared_down")
    if packed and dtype == BLOCKS:
        return no_matrix()
    empty = np.zeros(0, STORED[dtype] if packed else np.float32)
    empty.flags.writeable = False
    return empty


def _convert_into(folder: Path, checkpoint: Checkpoint, dtype: str, progress: Progress) -> None:
    """Convert beside `folder` and rename at the end."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder.parent))
    except OSError as error:
        raise _disk_error(error, folder) from error
    try:
        convert(temporary, checkpoint, dtype, progress)
        seal(temporary)
        temporary.rename(folder)
    except OSError as error:
        if not folder.exists():  # another process may have finished the same conversion first
            raise _disk_error(error, folder) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Take a damaged conversion away. Under its name it is gone at once; whoever has it mapped keeps it."""
    if not folder.exists():
        return
    try:
        with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder.parent, ignore_cleanup_errors=True) as aside:
            folder.rename(Path(aside) / folder.name)
    except FileNotFoundError:
        return  # another process took it away first
    except OSError as error:
        raise _disk_error(error, folder) from error


def _disk_error(error: OSError, folder: Path) -> PacelineError:
    reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
    return PacelineError(
        f"PACELINE_CACHE: converted weights could not be stored in {folder.parent}: {reason}; free some space or set "
        "PACELINE_CACHE to a folder on another disk"
    )


def convert(folder: Path, checkpoint: Checkpoint, dtype: str, progress: Progress = lambda done, total: None) -> None:
    """Write one .npy file per array of `forward.Weights`."""
    config, shape = checkpoint.config, shape_of(checkpoint.config)
    matrices = _matrices(config, shape)
    _reserve(folder, sum(m.elements for m in matrices) * np.dtype(STORED.get(dtype, np.uint8)).itemsize)
    total, done = sum(len(m.parts) for m in matrices) + 1, 0

    def step() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    for matrix in matrices:
        if dtype == BLOCKS:
            write_matrix(folder, matrix.name, matrix.depth, matrix.parts, matrix.interleave, checkpoint, step)
        else:
            _write_panels(folder, matrix, checkpoint, dtype, step)
    for name, values in _vectors(checkpoint, shape):
        np.save(folder / f"{name}.npy", values)
    progress(total, total)


def _write_panels(
    folder: Path, matrix: "_Matrix", checkpoint: Checkpoint, dtype: str, step: Callable[[], None]
) -> None:  # fmt: skip
    columns, depth = matrix.columns, matrix.depth
    panels = _new_array(folder / f"{matrix.name}.npy", STORED[dtype], matrix.elements)
    scales = _new_array(folder / f"{matrix.name}_scales.npy", np.float32, columns * len(matrix.parts))
    for index, names in enumerate(matrix.parts):
        stored, row_scales = quantise(matrix.stack([checkpoint.tensor(n) for n in names]), dtype)
        panels[index * columns * depth : (index + 1) * columns * depth] = pack(stored)
        scales[index * columns : index * columns + len(row_scales)] = row_scales
        step()


def _reserve(folder: Path, num_bytes: int) -> None:
    """Refuse early when the disk cannot hold what is coming: a memory map would die half-way."""
    if shutil.disk_usage(folder).free < num_bytes * 1.02:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _new_array(path: Path, dtype: type, size: int) -> np.ndarray:
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(size,))


def quantise(weights: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Weights [n, k] float32 as stored, and a scale per row [n]: stored * scale is what the kernels multiply with.

    bfloat16 rounds to nearest even; int8 is symmetric, with the largest weight of a row at 127; w8a8 has the same
    weights as int8, stored with 128 added.
    """
    if dtype == "float32":
        return weights, np.ones(len(weights), np.float32)
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(weights, np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return rounded.astype(np.uint16), np.ones(len(weights), np.float32)
    largest = np.abs(weights).max(axis=1)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    codes = np.rint(weights / scales[:, None]).astype(np.int8)
    return (codes.view(np.uint8) ^ np.uint8(ZERO_BYTE) if dtype == "w8a8" else codes), scales


class _Matrix:
    """One kind of matrix: its name, its (padded) shape, and per layer the checkpoint tensors it is stacked from."""

    def __init__(self, name: str, columns: int, depth: int, parts: list[list[str]], interleave: bool = False) -> None:
        self.name, self.columns, self.depth, self.parts, self.interleave = name, columns, depth, parts, interleave

    @property
    def elements(self) -> int:
        return self.columns * self.depth * len(self.parts)

    def stack(self, tensors: list[np.ndarray]) -> np.ndarray:
        """The tensors' rows one after the other, or panel by panel in turn."""
        if not self.interleave:
            return np.concatenate(tensors)
        panels = [t.reshape(-1, PANEL, self.depth) for t in tensors]
        return np.stack(panels, axis=1).reshape(-1, self.depth)


def _matrices(config: ModelConfig, shape: Shape) -> list[_Matrix]:
    def per_layer(*names: str) -> list[list[str]]:
        return [[f"model.layers.{i}.{name}.weight" for name in names] for i in range(shape.layers)]

    attention = [f"self_attn.{x}_proj" for x in "qkv"]
    matrices = [
        _Matrix("embedding", shape.vocab, shape.hidden, [["model.embed_tokens.weight"]]),
        _Matrix("qkv", shape.qkv, shape.hidden, per_layer(*attention)),
        _Matrix("output", shape.hidden, shape.heads * shape.head_dim, per_layer("self_attn.o_proj")),
    ]
    if config.experts:
        names = expert_names(config.model_type)
        stems = [
            f"model.layers.{i}.{names.expert.format(e)}" for i in range(shape.layers) for e in range(shape.experts)
        ]
        matrices += _feed_forward("", stems, names, shape.inner, shape)
        if shape.shared_inner:
            shared = [f"model.layers.{i}.{names.shared}" for i in range(shape.layers)]
            matrices += _feed_forward("shared_", shared, names, shape.shared_inner, shape)
    else:
        stems = [f"model.layers.{i}.mlp" for i in range(shape.layers)]
        matrices += _feed_forward("", stems, expert_names(config.model_type), shape.inner, shape)
    if not config.tie_word_embeddings:
        matrices.append(_Matrix("head", shape.vocab, shape.hidden, [["lm_head.weight"]]))
    return matrices


def _feed_forward(prefix: str, stems: list[str], names: ExpertNames, inner: int, shape: Shape) -> list[_Matrix]:
    """The two stacked matrices of gated feed-forwards, one part per stem."""
    gate_up = [[f"{stem}.{names.gate}.weight", f"{stem}.{names.up}.weight"] for stem in stems]
    down = [[f"{stem}.{names.down}.weight"] for stem in stems]
    return [
        _Matrix(f"{prefix}gate_up", 2 * inner, shape.hidden, gate_up, interleave=True),
        _Matrix(f"{prefix}down", shape.hidden, inner, down),
    ]


def _vectors(checkpoint: Checkpoint, shape: Shape) -> Iterator[tuple[str, np.ndarray]]:
    """Norm weights and the query-key-value bias (empty without one), all layers in one flat array each."""
    layers = [f"model.layers.{i}." for i in range(shape.layers)]
    yield "attention_norm", np.concatenate([checkpoint.tensor(p + "input_layernorm.weight") for p in layers])
    yield "mlp_norm", np.concatenate([checkpoint.tensor(p + "post_attention_layernorm.weight") for p in layers])
    yield "final_norm", checkpoint.tensor("model.norm.weight")
    for name, part in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
        norms = [checkpoint.tensor(f"{p}self_attn.{part}.weight") for p in layers if checkpoint.config.qk_norm]
        yield name, _flat([np.zeros(0, np.float32), *norms])
    bias = np.zeros((shape.layers if checkpoint.config.attention_bias else 0, shape.qkv), np.float32)
    for i in range(len(bias)):
        stacked = np.concatenate([checkpoint.tensor(f"{layers[i]}self_attn.{x}_proj.bias") for x in "qkv"])
        bias[i, : len(stacked)] = stacked
    yield "qkv_bias", bias.reshape(-1)
    if checkpoint.config.experts:
        names = expert_names(checkpoint.config.model_type)
        yield "router", _flat([checkpoint.tensor(f"{p}{names.router}.weight") for p in layers])
        if shape.shared_inner:
            yield "shared_gate", _flat([checkpoint.tensor(f"{p}{names.shared_gate}.weight") for p in layers])


def _flat(tensors: list[np.ndarray]) -> np.ndarray:
    """All of them in one flat array."""
    return np.concatenate([tensor.reshape(-1) for tensor in tensors])
