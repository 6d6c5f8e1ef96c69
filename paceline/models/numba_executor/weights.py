"""Weights as the kernels read them: packed once, stored on disk, memory-mapped from then on.

`load_weights` converts a checkpoint to panels (`gemm.pack`) in the given dtype and stores them in the cache folder;
later loads map the files. Not for where they are kept (`conversions.py`) or for file formats
(`models/files/checkpoint.py`).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paceline.disk import check_room
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.latent import LatentAttention
from paceline.models.architecture.positions import frequencies, rotary_dim
from paceline.models.architecture.recurrence import Recurrence
from paceline.models.cache_dir import cache_dir
from paceline.models.dtypes import has_blocks
from paceline.models.files.bfloat16 import to_bfloat16
from paceline.models.files.checkpoint import Checkpoint, LetsGo
from paceline.models.numba_executor.arrays import Shape, Weights
from paceline.models.numba_executor.blocks.formats import FORMATS
from paceline.models.numba_executor.blocks.store import no_matrix, read_matrix, write_matrix
from paceline.models.numba_executor.conversions import filled, place_of
from paceline.models.numba_executor.experts import ExpertWeights
from paceline.models.numba_executor.gemm import PANEL, ZERO_BYTE, pack, padded_rows
from paceline.models.numba_executor.latent import LatentWeights, latent_shape
from paceline.models.numba_executor.layer_inputs import VariedWeights
from paceline.models.numba_executor.layer_table import (
    HEAD_DIM,
    INNER,
    QKV,
    layer_table,
    page_dims,
    row_size,
)
from paceline.models.numba_executor.linear import CLAMPED, GELU, GELU_ERF, RELU2, SILU
from paceline.models.numba_executor.operand import GROUP, ROUNDS, activations_of
from paceline.models.numba_executor.recurrent import RecurrentWeights, recurrent_shape, recurrent_tensors
from paceline.types import Progress

Dtype = Literal["bfloat16", "float16", "float32", "int8", "w8a8", "gguf"]

STORED = {"bfloat16": np.uint16, "float16": np.int16, "float32": np.float32, "int8": np.int8, "w8a8": np.uint8}
"""Element type of panels by dtype; panels of gguf are bytes of blocks."""
_NUMBERS_AT_ONCE = 1 << 24
_TABLES = ("embedding", "head")
BLOCKS = "gguf"
"""The dtype of matrices in the blocks of a file."""


_ACTIVATIONS = {"gated_silu": SILU, "gated_clamped": CLAMPED, "gelu": GELU_ERF, "relu2": RELU2}
"""Those of `ModelConfig.mlp` that are not GELU by tanh."""


def shape_of(config: ModelConfig) -> Shape:
    """Sizes for the kernels.

    Raises:
        UnsupportedModel: a width or a mixture of parts the kernels do not cover; the torch executor runs it.
    """
    remedy = 'run it with executor="torch" (needs paceline[torch])'
    apart = config.post_norms or config.parallel
    beside = config.experts is not None and config.experts.beside_dense
    if (apart and config.experts and not beside) or (config.post_norms and config.norm == "layer"):
        raise UnsupportedModel(f"post_norms, parallel: not beside experts or layer norms here; {remedy}")
    if config.layers_without_mlp and (apart or config.norm == "layer" or config.mlp_bias):
        raise UnsupportedModel(f"layers_without_mlp: not beside post-norms, layer norms or biases here; {remedy}")
    read_whole = config.hidden_size_per_layer_input or config.position_embedding == "learned" or not config.pre_norms
    if config.residual_scale != 1.0 and read_whole:
        raise UnsupportedModel(f"residual_scale: only with norms before layers and rotary positions here; {remedy}")
    mixture = config.experts
    shared, dense = (mixture.shared_intermediate_size, mixture.dense_intermediate_size) if mixture else (0, 0)
    for name, value, size in (
        ("hidden_size", config.hidden_size, PANEL), ("shared_expert_intermediate_size", shared, PANEL),
        ("hidden_size_per_layer_input", config.hidden_size_per_layer_input, PANEL), ("intermediate_size", dense, PANEL),
        ("intermediate_size", config.intermediate_size, PANEL),
        *(("intermediate_size", one.intermediate_size, PANEL) for one in config.layer_sizes),
        *(("head_dim", dim, 16) for dim in sorted(config.head_dims)), *_latent_sizes(config.latent),
    ):  # fmt: skip
        if value % size:
            raise UnsupportedModel(f"{name}: {value} is not a multiple of {size}; {remedy}")
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    table = layer_table(config)
    return Shape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        qkv=row_size(config, table),
        vocab=padded_rows(config.vocab_size),
        scored=config.vocab_size,
        experts=mixture.num_experts if mixture else 0,
        top_k=mixture.num_experts_per_tok if mixture else 0,
        shared_inner=shared,
        norm_top_k=bool(mixture and mixture.norm_topk_prob),
        attention_scale=np.float32(config.attention_scale or dim**-0.5),
        attention_cap=np.float32(config.attention_softcap),
        query_growth=np.float32(config.query_growth),
        query_growth_every=config.query_growth_every,
        activation=_ACTIVATIONS.get(config.mlp, GELU),
        gated=config.is_gated,
        layer_norm=config.norm == "layer",
        pre_norms=config.pre_norms,
        post_norms=config.post_norms,
        apart=apart,
        parallel=config.parallel,
        wide_norm=config.qk_norm and config.qk_norm_over == "all",
        norms_last=config.qk_norm_after_rope,
        gated_attention=config.attention_gate,
        rotary=rotary_dim(config) if config.position_embedding == "rotary" else 0,
        tables=max(1, len(frequencies(config))),
        embedding_scale=np.float32(config.embedding_scale / config.residual_scale),
        residual_scale=np.float32(config.residual_scale),
        logit_scale=np.float32(config.logit_scale),
        logit_cap=np.float32(config.logit_softcap),
        page_dims=page_dims(table),
        layer_input=config.hidden_size_per_layer_input,
        sigmoid=bool(mixture and mixture.scoring_func == "sigmoid"),
        groups=mixture.n_group if mixture else 1,
        groups_kept=mixture.topk_group if mixture else 1,
        routed_scale=np.float32(mixture.routed_scaling_factor if mixture else 1),
        dense_layers=mixture.first_k_dense_replace if mixture else 0,
        mixtures=len(config.expert_layers),
        dense_inner=dense,
        query_depth=(config.latent.q_lora_rank if config.latent else 0) or config.hidden_size,
        latent=latent_shape(config),
        cached=len(config.attention_layers),
        recurrent=recurrent_shape(config.recurrence),
    )


def _latent_sizes(latent: LatentAttention | None) -> tuple[tuple[str, int, int], ...]:
    """Name and value of the sizes of latent attention, and what they must be multiples of."""
    if latent is None:
        return ()
    return (
        ("kv_lora_rank", latent.kv_lora_rank, PANEL), ("q_lora_rank", latent.q_lora_rank, PANEL),
        ("v_head_dim", latent.v_head_dim, 16), ("qk_rope_head_dim", latent.qk_rope_head_dim, 16),
    )  # fmt: skip


def load_weights(
    checkpoint: Checkpoint, dtype: str, progress: Progress | None = None, without: Collection[str] = ()
) -> dict[str, Any]:
    """The fields of `arrays.Weights` (rotary tables excepted) by name, memory-mapped; matrices `without` are left out.

    Where the cache folder is read-only they are converted at every start, and read into memory.

    Raises:
        InvalidParameter: an unknown dtype, w8a8 or gguf with heads that are no multiple of 32, or gguf for weights that
            are not stored in blocks.
        UnsupportedModel: see `shape_of`.
        PacelineError: the disk is full; nothing half-written stays behind.
    """
    if dtype not in (*STORED, BLOCKS):
        raise InvalidParameter("dtype", f"{dtype!r} is unknown", f"use one of auto, {', '.join(STORED)}, {BLOCKS}")
    shape_of(checkpoint.config)
    _check_rounding(checkpoint, dtype)
    kind = ("bfloat16-pairs" if activations_of(dtype) is np.uint16 else dtype) + "-layers" * bool(without)
    folder = place_of(cache_dir(), checkpoint.fingerprint, kind)
    with filled(folder, lambda empty: convert(empty, checkpoint, dtype, progress or _silent, without)) as (full, stays):
        return stored_arrays(full, checkpoint.config, dtype, mapped=stays)


def load_layers(checkpoint: Checkpoint, dtype: str, progress: Progress | None, beside: Weights) -> dict[str, Any]:
    """As `load_weights`, but with the embedding and the output head of a model whose weights are `beside`."""
    arrays = load_weights(checkpoint, dtype, progress, without=_TABLES)
    return arrays | {name: getattr(beside, name) for table in _TABLES for name in (table, f"{table}_scales")}


def _silent(done: int, total: int) -> None:
    """A progress callback that does nothing."""


def _check_rounding(checkpoint: Checkpoint, dtype: str) -> None:
    config = checkpoint.config
    odd = [dim for dim in (*config.head_dims, config.value_dim) if dim % GROUP]
    if dtype in ROUNDS and odd:
        problem = f"{dtype} rounds {GROUP} values together, and {odd[0]} per head cannot be cut so"
        raise InvalidParameter("dtype", problem, "use int8")
    if dtype == BLOCKS and not has_blocks(checkpoint):
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
    if config.tie_word_embeddings and "embedding" in arrays:
        arrays["head"], arrays["head_scales"] = arrays["embedding"], arrays["embedding_scales"]

    def gathered(kind: Any, has_it: object, prefix: str = "") -> Any:
        own = kind(*[arrays.pop(f"{prefix}{name}", _nothing(name, dtype)) for name in kind._fields])
        return own if has_it else None

    parts = {
        "experts": gathered(ExpertWeights, config.experts),
        "latent": gathered(LatentWeights, config.latent),
        "recurrent": gathered(RecurrentWeights, config.recurrence, "recurrent_"),
        "varied": gathered(VariedWeights, True),
    }
    return arrays | parts


def _gather_blocks(arrays: dict[str, Any], folder: Path, mapped: bool) -> None:
    """Put `Blocks` and empty scales in the place of the files of each matrix."""
    for name in [key.removesuffix("_formats") for key in arrays if key.endswith("_formats")]:
        del arrays[f"{name}_formats"], arrays[f"{name}_starts"]
        arrays[name], arrays[f"{name}_scales"] = read_matrix(folder, name, mapped), _nothing("scales", BLOCKS)


def _nothing(name: str, dtype: str) -> Any:
    """An empty array of the type that `name` has in models that have it, read-only as a mapped one is."""
    packed = name in _PACKED
    if packed and dtype == BLOCKS:
        return no_matrix()
    empty = np.zeros(0, STORED[dtype] if packed else np.float32)
    empty.flags.writeable = False
    return empty


_PACKED = ("shared_gate_up", "shared_down", "dense_gate_up", "dense_down", "compress", "expand", "project", "out",
           "input_tokens", "input_projection", "input_gate", "input_up")  # fmt: skip
"""Matrices that only some models have."""


def convert(
    folder: Path, checkpoint: Checkpoint, dtype: str, progress: Progress = lambda done, total: None,
    without: Collection[str] = (),
) -> None:  # fmt: skip
    """Write one .npy file per array of `arrays.Weights`; matrices `without` are left out."""
    config, shape = checkpoint.config, shape_of(checkpoint.config)
    matrices = [matrix for matrix in _matrices(config, shape) if matrix.name not in without]
    num_bytes = sum(m.elements for m in matrices) * np.dtype(STORED.get(dtype, np.uint8)).itemsize
    check_room(folder, num_bytes * 1.02)  # writing to a memory map on a full disk would crash the process
    total, done = sum(len(m.parts) for m in matrices) + 1, 0

    def step() -> None:
        nonlocal done
        done += 1
        if isinstance(checkpoint, LetsGo):
            checkpoint.let_go()  # or a first start would have the file and what becomes of it in memory
        progress(done, total)

    for matrix in matrices:
        if dtype == BLOCKS:
            write_matrix(folder, matrix.name, matrix.depths, matrix.parts, matrix.interleave, checkpoint, step)
        else:
            _write_panels(folder, matrix, checkpoint, dtype, step)
    for name, values in _vectors(checkpoint, shape):
        np.save(folder / f"{name}.npy", values)
    progress(total, total)


def _write_panels(
    folder: Path, matrix: "_Matrix", checkpoint: Checkpoint, dtype: str, step: Callable[[], None]
) -> None:  # fmt: skip
    panels = _new_array(folder / f"{matrix.name}.npy", STORED[dtype], matrix.elements)
    scales = _new_array(folder / f"{matrix.name}_scales.npy", np.float32, sum(matrix.columns))
    element = column = 0
    for names, columns, depth in zip(matrix.parts, matrix.columns, matrix.depths, strict=True):
        rows, at_once = matrix.stack([checkpoint.tensor(n) for n in names], depth), _rows_at_once(depth)
        for first in range(0, len(rows), at_once):
            stored, row_scales = quantise(rows[first : first + at_once], dtype)
            packed, start = pack(stored), element + first * depth
            panels[start : start + len(packed)] = packed
            scales[column + first : column + first + len(row_scales)] = row_scales
        element, column = element + columns * depth, column + columns
        step()


def _rows_at_once(depth: int) -> int:
    """Rows, in whole panels, that are rounded at a time, so that a table of billions of numbers is not copied whole."""
    return max(1, _NUMBERS_AT_ONCE // (depth * PANEL)) * PANEL


def _new_array(path: Path, dtype: type, size: int) -> np.ndarray:
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(size,))


def quantise(weights: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Weights [n, k] float32 as stored, and a scale per row [n]: stored * scale is what the kernels multiply with.

    bfloat16 and float16 round to nearest even, and come as their bits (uint16 and int16); int8 is symmetric, with the
    largest weight of a row at 127; w8a8 has the same weights as int8, stored with 128 added.

    Raises:
        InvalidParameter: weights too large for float16.
    """
    if dtype == "float32":
        return weights, np.ones(len(weights), np.float32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            halves = weights.astype(np.float16)
        if not np.isfinite(halves).all():
            raise InvalidParameter("dtype", "float16 ends at 65504, and there are larger weights", "use bfloat16")
        return halves.view(np.int16), np.ones(len(weights), np.float32)
    if dtype == "bfloat16":
        return to_bfloat16(weights), np.ones(len(weights), np.float32)
    largest = np.abs(weights).max(axis=1)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    codes = np.rint(weights / scales[:, None]).astype(np.int8)
    return (codes.view(np.uint8) ^ np.uint8(ZERO_BYTE) if dtype == "w8a8" else codes), scales


class _Matrix:
    """One kind of matrix: its name, and per layer its (padded) shape and the checkpoint tensors it is stacked from."""

    def __init__(
        self, name: str, columns: int | Sequence[int], depths: int | Sequence[int], parts: list[list[str]],
        interleave: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.parts, self.interleave = name, parts, interleave
        self.columns = [columns] * len(parts) if isinstance(columns, int) else columns
        self.depths = [depths] * len(parts) if isinstance(depths, int) else depths

    @property
    def elements(self) -> int:
        return sum(columns * depth for columns, depth in zip(self.columns, self.depths, strict=True))

    def stack(self, tensors: list[np.ndarray], depth: int) -> np.ndarray:
        """The tensors' rows one after the other, or panel by panel in turn."""
        if not self.interleave:
            return tensors[0] if len(tensors) == 1 else np.concatenate(tensors)
        panels = [t.reshape(-1, PANEL, depth) for t in tensors]
        return np.stack(panels, axis=1).reshape(-1, depth)


def _matrices(config: ModelConfig, shape: Shape) -> list[_Matrix]:
    def per_layer(layers: Sequence[int], *names: str) -> list[list[str]]:
        return [[f"model.layers.{i}.{name}.weight" for name in names] for i in layers]

    table, every, attending = layer_table(config), range(shape.layers), list(config.attention_layers)
    attention = [
        [f"model.layers.{i}.self_attn.{x}_proj.weight"
         for x in "q" + "k" * one.has_keys + "v" * one.has_values + "g" * config.attention_gate]
        for i, one in ((i, config.sizes(i)) for i in attending)
    ]  # fmt: skip
    if config.latent:
        attention = per_layer(attending, "self_attn.q_b_proj" if shape.latent.query_rank else "self_attn.q_proj")
    widths = config.value_dim if config.latent else table[attending, HEAD_DIM]
    depths = [int(shape.heads * width) for width in np.broadcast_to(widths, len(attending))]
    matrices = [
        _Matrix("embedding", shape.vocab, shape.hidden, [["model.embed_tokens.weight"]]),
        _Matrix("qkv", table[attending, QKV].tolist(), shape.query_depth, attention),
        _Matrix("output", shape.hidden, depths, per_layer(attending, "self_attn.o_proj")),
    ]
    if width := shape.layer_input:
        matrices += [
            _Matrix("input_tokens", shape.vocab, shape.layers * width, [["model.embed_tokens_per_layer.weight"]]),
            _Matrix("input_projection", shape.layers * width, shape.hidden,
                    [["model.per_layer_model_projection.weight"]]),
            _Matrix("input_gate", width, shape.hidden, per_layer(every, "per_layer_input_gate")),
            _Matrix("input_up", shape.hidden, width, per_layer(every, "per_layer_projection")),
        ]  # fmt: skip
    if config.latent:
        compresses = ["self_attn.q_a_proj"] * bool(shape.latent.query_rank) + ["self_attn.kv_a_proj"]
        expands = per_layer(attending, "self_attn.k_b_proj", "self_attn.v_b_proj")
        matrices.append(_Matrix("compress", shape.latent.compressed, shape.hidden, per_layer(attending, *compresses)))
        matrices.append(_Matrix("expand", shape.latent.expanded, shape.latent.rank, expands))
    if config.recurrence:
        r, numbers = shape.recurrent, config.recurrence.layers
        project, out = (per_layer(numbers, *names) for names in recurrent_tensors(config.recurrence))
        matrices.append(_Matrix("recurrent_project", r.columns, shape.hidden, project))
        matrices.append(_Matrix("recurrent_out", shape.hidden, r.width, out))
    layers = [f"model.layers.{i}.mlp" for i in range(shape.layers)]
    if config.experts:
        dense, sparse = layers[: shape.dense_layers], [layers[i] for i in config.expert_layers]
        stems = [f"{layer}.experts.{e}" for layer in sparse for e in range(shape.experts)]
        matrices += _feed_forward("", stems, shape.inner, shape)
        if shape.shared_inner:
            shared = [f"{layer}.shared_expert" for layer in sparse]
            matrices += _feed_forward("shared_", shared, shape.shared_inner, shape)
        if dense:
            matrices += _feed_forward("dense_", dense, shape.dense_inner, shape)
    else:
        wide = [i for i in every if i not in config.layers_without_mlp]
        matrices += _feed_forward("", [layers[i] for i in wide], table[wide, INNER].tolist(), shape)
    if not config.tie_word_embeddings:
        matrices.append(_Matrix("head", shape.vocab, shape.hidden, [["lm_head.weight"]]))
    return matrices


def _feed_forward(prefix: str, stems: list[str], inner: int | Sequence[int], shape: Shape) -> list[_Matrix]:
    """The two stacked matrices of feed-forwards, one part per stem."""
    widths = [inner] * len(stems) if isinstance(inner, int) else inner
    firsts = ("gate_proj", "up_proj") if shape.gated else ("up_proj",)
    gate_up = [[f"{stem}.{name}.weight" for name in firsts] for stem in stems]
    down = [[f"{stem}.down_proj.weight"] for stem in stems]
    return [
        _Matrix(f"{prefix}gate_up", [len(firsts) * one for one in widths], shape.hidden, gate_up, shape.gated),
        _Matrix(f"{prefix}down", shape.hidden, widths, down),
    ]


def _vectors(checkpoint: Checkpoint, shape: Shape) -> Iterator[tuple[str, np.ndarray]]:
    """Norms, biases, routers and learned positions, all layers in one flat array each; empty where there are none."""
    layers, names = [f"model.layers.{i}." for i in range(shape.layers)], frozenset(checkpoint.names())

    def of_layers(part: str) -> np.ndarray:
        return _flat([checkpoint.tensor(layer + part) for layer in layers if layer + part in names])

    def of_heads(part: str) -> np.ndarray:
        rows = np.zeros((shape.layers, shape.head_dim), np.float32)
        for row, layer in zip(rows, layers, strict=True):
            values = alone(layer + part)
            row[: len(values)] = values
        return _flat([rows])

    def alone(name: str) -> np.ndarray:
        return _flat([checkpoint.tensor(name)] if name in names else [])

    def zeros_for(biases: np.ndarray, count: int) -> np.ndarray:
        """The biases of `count` layer norms, zeros where these have none."""
        return biases if len(biases) or not shape.layer_norm else np.zeros(count * shape.hidden, np.float32)

    feed_forwards = [f"{layer}mlp." for layer in layers]
    if checkpoint.config.experts:
        feed_forwards = [f"{stem}experts.{expert}." for stem in feed_forwards for expert in range(shape.experts)]
    without = checkpoint.config.layers_without_mlp
    for name, part in _NORMS.items():
        weights = of_layers(f"{part}.weight")
        if name == "mlp_norm" and without:  # kernels look up all of them by the layer's number
            weights = _flat([np.insert(weights.reshape(-1, shape.hidden), _gaps(without), 0.0, axis=0)])
        yield name, weights
        if name in ("attention_norm", "mlp_norm"):
            yield f"{name}_bias", zeros_for(of_layers(f"{part}.bias"), shape.layers)
    for name, part in (("query_norm", "self_attn.q_norm.weight"), ("key_norm", "self_attn.k_norm.weight")):
        yield name, of_heads(part) if checkpoint.config.layer_sizes else of_layers(part)
    latents = [f"{layer}self_attn.{part}_norm.weight" for layer in layers for part in ("q_a", "kv_a")]
    yield "latent_norm", _flat([checkpoint.tensor(name) for name in latents if name in names])
    yield "final_norm", alone("model.norm.weight")
    yield "final_norm_bias", zeros_for(alone("model.norm.bias"), 1)
    yield "positions", alone("model.position_embeddings.weight")
    yield "output_bias", of_layers("self_attn.o_proj.bias")
    yield "sinks", of_layers("self_attn.sinks.weight")
    yield "down_bias", _stacked_biases(checkpoint, feed_forwards, names, ["down_proj.bias"])
    firsts = ["gate_proj.bias", "up_proj.bias"] if shape.gated else ["up_proj.bias"]
    yield "gate_up_bias", _stacked_biases(checkpoint, feed_forwards, names, firsts, interleave=shape.gated)
    queries = [f"self_attn.{x}_proj.bias" for x in "qkv"]
    attending = [layers[i] for i in checkpoint.config.attention_layers]
    yield "qkv_bias", _stacked_biases(checkpoint, attending, names, queries, columns=shape.qkv)
    if checkpoint.config.recurrence:
        for name, values in _recurrent_vectors(checkpoint, checkpoint.config.recurrence):
            yield f"recurrent_{name}", values
    if checkpoint.config.value_norm:
        yield "value_norm", np.ones(shape.head_dim, np.float32)
    if checkpoint.config.layer_scalars:
        yield "layer_scalars", of_layers("layer_scalar.weight")
    if shape.layer_input:
        yield "input_norm", alone("model.per_layer_projection_norm.weight")
        yield "input_out_norm", of_layers("post_per_layer_input_norm.weight")
    if checkpoint.config.experts:
        yield "router", of_layers("mlp.gate.weight")
        yield "router_bias", of_layers("mlp.gate.bias")
        yield "selection_bias", of_layers("mlp.gate.e_score_correction.bias")
        yield "shared_gate", of_layers("mlp.shared_expert_gate.weight")
        for name, part in (("experts_norm", "experts_norm"), ("experts_out_norm", "experts_out_norm"),
                           ("dense_out_norm", "shared_expert.out_norm"), ("expert_scales", "gate_scales")):  # fmt: skip
            yield name, of_layers(f"mlp.{part}.weight")
        yield "router_norm", of_layers("mlp.gate_norm.weight") * np.float32(shape.hidden**-0.5)


def _recurrent_vectors(checkpoint: Checkpoint, recurrence: Recurrence) -> Iterator[tuple[str, np.ndarray]]:
    """The vectors of `RecurrentWeights`."""
    layers = [f"model.layers.{i}." for i in recurrence.layers]

    def each(part: str) -> list[np.ndarray]:
        return [checkpoint.tensor(layer + part) for layer in layers]

    convolution = "linear_attn.conv1d" if recurrence.has_matrices else "conv.conv"
    yield "taps", _flat([np.ascontiguousarray(one.T) for one in each(f"{convolution}.weight")])
    none = np.zeros(len(layers) * recurrence.channels, np.float32)
    yield "bias", _flat(each(f"{convolution}.bias")) if recurrence.conv_bias else none
    if recurrence.has_matrices:
        is_delta = recurrence.kind == "gated_delta_net"
        gates = [each(f"linear_attn.in_proj_{part}.weight") for part in ("ba" if is_delta else "a")]
        yield "gates", _flat([np.concatenate(parts) for parts in zip(*gates, strict=True)])
        yield "step_shift", _flat(each("linear_attn.dt.bias"))
        yield "decay", _flat([-np.exp(one) for one in each("linear_attn.A_log.weight")])
        yield "norm", _flat(each("linear_attn.norm.weight"))
        yield "skip", _flat([] if is_delta else each("linear_attn.D.weight"))


_NORMS = {
    "attention_norm": "input_layernorm", "attention_out_norm": "self_attn.out_norm",
    "mlp_norm": "post_attention_layernorm", "mlp_out_norm": "mlp.out_norm",
}  # fmt: skip


def _gaps(numbers: Sequence[int]) -> list[int]:
    """Where rows must be put between those of all other layers, so that they have these `numbers`."""
    return [number - i for i, number in enumerate(numbers)]


def _stacked_biases(
    checkpoint: Checkpoint, stems: list[str], names: frozenset[str], parts: list[str], interleave: bool = False,
    columns: int = 0,
) -> np.ndarray:  # fmt: skip
    """Per stem the biases `parts` one after the other or panel by panel, with zeros up to `columns`."""
    rows = []
    for stem in stems if stems[0] + parts[0] in names else ():
        biases = [checkpoint.tensor(stem + part) for part in parts]
        one = np.stack([b.reshape(-1, PANEL) for b in biases], axis=1) if interleave else np.concatenate(biases)
        rows.append(np.pad(one.reshape(-1), (0, max(0, columns - one.size))))
    return _flat(rows)


def _flat(tensors: list[np.ndarray]) -> np.ndarray:
    """All of them in one flat array."""
    return np.concatenate([np.zeros(0, np.float32), *(tensor.reshape(-1) for tensor in tensors)])
