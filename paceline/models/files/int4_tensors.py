"""4-bit integer weights in safetensors folders: GPTQ, AWQ, and compressed-tensors' pack-quantized (w4a16).

Each format stores a linear layer as 4-bit codes, eight to a 32-bit word, with a float16 scale and possibly a zero point
per group of 32 to 128 inputs: weight = scale * (code - zero point). This module converts them to rows of blocks of 32
codes, which the kernels multiply (Q4_0 where all zero points are 8, else `INT4`); a scale is repeated for every 32
codes of its group. With act-order (inputs sorted by importance) the inputs of a group are not contiguous; such layers
have values, but no blocks. Not for reading files (`safetensors_folder.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.errors import CorruptWeights, InvalidParameter, UnsupportedModel
from paceline.models.fields import shown
from paceline.models.files.byte_tensors import bytes_of
from paceline.models.files.checkpoint import StoredBlocks, finite
from paceline.models.files.mxfp4_tensors import Mxfp4Scheme

_PER_WORD = 8
_BLOCK = 32
_MIDDLE = 8
"""The zero point of symmetric codes."""
_ONES = np.uint32(0x11111111)
"""1 in each of eight codes. GPTQ's first format stores words of zero points minus this word; the subtraction is one of
32-bit integers, so a zero point of 0 borrows from its neighbour."""
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbouring columns each nibble of an AWQ word holds, lowest first."""
_INT4_BYTES, _Q4_0_BYTES = 20, 18
_ENDLESS = 65520
"""Smallest number that rounds to infinity in float16."""

Read = Callable[[str], np.ndarray]
"""Takes the name of a stored tensor, returns its values in their stored type (bfloat16 as float32)."""


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """A linear layer [n, k]: codes uint8 [n, k], scales float32 [n, groups], zeros uint8 [n, groups].

    `blocks` rounds scales to float16, `values` uses them as they are. `order` [k] is the group of every input; None
    where groups are contiguous runs of equal length.
    """

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    order: np.ndarray | None = None

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.codes.shape[1] // self.scales.shape[1]

    def values(self) -> np.ndarray:
        """The weights [n, k] as float32."""
        n, k = self.codes.shape
        if self.order is not None:
            zeros, scales = self.zeros[:, self.order], self.scales[:, self.order]
            return (self.codes.astype(np.float32) - zeros) * scales
        whole = self.codes.reshape(n, -1, self.group).astype(np.float32) - self.zeros[:, :, None]
        return (whole * self.scales[:, :, None]).reshape(n, k)

    def blocks(self, layer: str) -> StoredBlocks | None:
        """Rows of blocks of 32 codes; None where groups are not contiguous.

        Raises:
            InvalidParameter: naming `layer`, when a scale is too large for float16.
        """
        if self.order is not None:
            return None
        largest = np.abs(self.scales).max()
        if largest >= _ENDLESS:
            problem = f"gguf keeps scales as float16, which ends at 65504, and {layer} has one of {largest:g}"
            raise InvalidParameter("dtype", problem, "use bfloat16 or float32")
        n, k = self.codes.shape
        repeat = self.group // _BLOCK
        halves = self.codes.reshape(n, k // _BLOCK, 2, _BLOCK // 2)
        nibbles = halves[:, :, 0] | halves[:, :, 1] << 4
        heads = [np.repeat(self.scales.astype(np.float16), repeat, axis=1)]
        symmetric = bool((self.zeros == _MIDDLE).all())
        if not symmetric:
            heads.append(np.repeat(self.zeros.astype(np.float16), repeat, axis=1))
        parts = [head[:, :, None].view(np.uint8) for head in heads]
        rows = np.concatenate([*parts, nibbles], axis=2).reshape(n, -1)
        return StoredBlocks("Q4_0", rows, _Q4_0_BYTES) if symmetric else StoredBlocks("INT4", rows, _INT4_BYTES)


@dataclass(frozen=True, slots=True)
class Int4Scheme:
    """How a folder's linear layers are stored.

    Attributes:
        method: ``gptq``, ``awq`` or ``compressed-tensors``.
        stem: name, after the layer's name, of the stored tensor of codes; it marks a quantised layer. order: that of
            the tensor with the group of every input.
        zeros_less_one: whether stored zero points are the true ones minus 1, as in GPTQ's first format.
        storage: what a checkpoint calls such weights.
    """

    method: str
    stem: str
    order: str = "g_idx"
    zeros_less_one: bool = False
    storage: str = "INT4"

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Shape [n, k] of a layer whose stored codes have the shape `stored`."""
        if len(stored) != 2:
            return stored
        first, second = stored
        shapes = {"gptq": (second, _PER_WORD * first), "awq": (_PER_WORD * second, first)}
        return shapes.get(self.method, (first, _PER_WORD * second))

    def matrix(self, layer: str, read: Read, names: Mapping[str, Any]) -> Int4Matrix:
        """The layer called `layer` (without ``.weight``) of the folder whose stored tensors are `names`.

        Raises:
            CorruptWeights: parts are missing or do not fit together, or a scale is not finite.
            UnsupportedModel: the group size is not a multiple of 32.
        """
        try:
            found = _READERS[self.method](layer, read, names, self.zeros_less_one)
            if found.scales.dtype.kind != "f":
                raise ValueError(f"scales stored as {found.scales.dtype}")
            found = replace(found, order=self._order(layer, read, names, found))
        except (KeyError, ValueError) as error:
            raise CorruptWeights(f"{layer}: its 4-bit parts do not fit together ({error}); download it again") from None
        finite(found.scales, "scales", layer)
        if found.codes.shape[1] % found.scales.shape[1] or found.group % _BLOCK:
            raise UnsupportedModel(
                f"group_size: {layer} has groups of {found.group}, not a multiple of {_BLOCK}; take one with 128"
            )
        return found

    def keeps_runs(self, read: Read, names: Mapping[str, Any]) -> bool:
        """Whether the groups of all layers are contiguous inputs, so that all layers have blocks."""
        end = f".{self.order}"
        orders = [read(name) for name in names if name.endswith(end)]
        return all(_is_order(order) and (not order.any() or _in_runs(order, int(order.max()) + 1)) for order in orders)

    def _order(self, layer: str, read: Read, names: Mapping[str, Any], found: Int4Matrix) -> np.ndarray | None:
        name = f"{layer}.{self.order}"
        if name not in names:
            return None
        order, count = read(name), found.scales.shape[1]
        if not _is_order(order) or order.shape != found.codes.shape[1:] or order.max() >= count:
            raise ValueError(f"{self.order} {order.shape} for {count} groups")
        return None if not order.any() or _in_runs(order, count) else order  # all 0: not filled in, see ExLlamaV2


def _is_order(order: np.ndarray) -> bool:
    """Whether `order` can be an array of group indices."""
    return order.ndim == 1 and len(order) > 0 and order.dtype.kind == "i" and bool(order.min() >= 0)


def _in_runs(order: np.ndarray, count: int) -> bool:
    """Whether `order` describes `count` contiguous groups of equal length."""
    return len(order) % count == 0 and np.array_equal(order, np.arange(len(order)) // (len(order) // count))


def scheme_of(config: Mapping[str, Any]) -> Int4Scheme | Mxfp4Scheme | None:
    """The scheme in the ``quantization_config`` of a config.json; None for a model without 4-bit layers.

    Raises:
        UnsupportedModel: the model is quantised in a way that is not supported.
    """
    quantization = config.get("quantization_config")
    if quantization is None:
        return None
    if not isinstance(quantization, dict):
        raise UnsupportedModel(
            f"quantization_config: {shown(quantization)} is no object; get the model's files from their source again"
        )
    method = quantization.get("quant_method")
    if method == "gptq" and quantization.get("bits") == 4 and _gptq_format(quantization) in ("gptq", "gptq_v2"):
        return Int4Scheme("gptq", "qweight", zeros_less_one=_gptq_format(quantization) == "gptq")
    if method == "awq" and quantization.get("bits", 4) == 4 and _text(quantization, "version", "gemm") == "gemm":
        return Int4Scheme("awq", "qweight")
    if method == "compressed-tensors" and _is_w4a16(quantization):
        return Int4Scheme("compressed-tensors", "weight_packed", order="weight_g_idx")
    if method == "mxfp4":
        return Mxfp4Scheme()
    if bytes_of(config) is not None:
        return None
    raise UnsupportedModel(
        f"quantization_config: {method!r} ({_kind_of(quantization)}) is not implemented, only 4-bit gptq, awq "
        "(gemm), compressed-tensors (pack-quantized, weights only), mxfp4, and weights of 8 bits (fp8, symmetric "
        "integers of compressed-tensors); take one of these, a GGUF file, or the unquantised model"
    )


def _gptq_format(quantization: Mapping[str, Any]) -> str:
    """The checkpoint format of a GPTQ model; ``marlin`` and others store codes in another order under these names."""
    if quantization.get("is_marlin_format"):
        return "marlin"
    return _text(quantization, "checkpoint_format", "gptq")


def _text(quantization: Mapping[str, Any], name: str, default: str) -> str:
    """A setting in lower case; tools write it in either case."""
    return str(quantization.get(name) or default).lower()


def _is_w4a16(quantization: Mapping[str, Any]) -> bool:
    """Whether weights are 4-bit integers without sparsity, rotations or quantised activations."""
    groups = quantization.get("config_groups")
    if quantization.get("format") != "pack-quantized" or not isinstance(groups, dict):
        return False
    sparsity = quantization.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        return False
    if quantization.get("transform_config"):
        return False
    weights = [group.get("weights") or {} for group in groups.values() if isinstance(group, dict)]
    if len(weights) < len(groups) or not all(isinstance(one, dict) for one in weights):
        return False
    rounds = any(group.get("input_activations") for group in groups.values())
    return not rounds and all(w.get("num_bits") == 4 and w.get("type", "int") == "int" for w in weights)


def _kind_of(quantization: Mapping[str, Any]) -> str:
    """Bits and format of a quantisation for an error message."""
    named = ("bits", "format", "checkpoint_format", "version", "sparsity_config", "transform_config")
    said = [f"{name} {shown(quantization[name])}" for name in named if quantization.get(name)]
    return ", ".join(said) or "nothing else said"


def _nibbles(words: np.ndarray) -> np.ndarray:
    """[n, m] int32 as [n, m, 8] codes, lowest bits first. Raises ValueError for words of another type or shape."""
    if words.dtype not in (np.int32, np.uint32) or words.ndim != 2:
        raise ValueError(f"codes stored as {words.dtype} {words.shape}")
    shifts = np.arange(_PER_WORD, dtype=np.uint32) * 4
    return (words.view(np.uint32)[..., None] >> shifts & 15).astype(np.uint8)


def _along_rows(words: np.ndarray) -> np.ndarray:
    """Words [m, n] that hold eight rows each, as [8 m, n]."""
    return _nibbles(words).transpose(0, 2, 1).reshape(-1, words.shape[1])


def _along_columns(words: np.ndarray) -> np.ndarray:
    """Words [m, n] that hold eight columns each, as [m, 8 n]."""
    return _nibbles(words).reshape(len(words), -1)


def _awq_columns(words: np.ndarray) -> np.ndarray:
    """As `_along_columns`, in AWQ's order of eight."""
    codes = np.empty((*words.shape, _PER_WORD), np.uint8)
    codes[..., _AWQ_ORDER] = _nibbles(words)
    return codes.reshape(len(words), -1)


def _gptq(layer: str, read: Read, names: Mapping[str, Any], zeros_less_one: bool) -> Int4Matrix:
    codes, scales = _along_rows(read(f"{layer}.qweight")), read(f"{layer}.scales")
    words = read(f"{layer}.qzeros")
    zeros = _along_columns(words.view(np.uint32) + _ONES if zeros_less_one else words)
    return _transposed(codes, scales, zeros)


def _awq(layer: str, read: Read, names: Mapping[str, Any], zeros_less_one: bool) -> Int4Matrix:
    codes, zeros = (_awq_columns(read(f"{layer}.{part}")) for part in ("qweight", "qzeros"))
    return _transposed(codes, read(f"{layer}.scales"), zeros)


def _transposed(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> Int4Matrix:
    """The matrix of codes [k, n], scales [groups, n] and zero points [groups, n]."""
    if zeros.shape != scales.shape or codes.shape[1] != scales.shape[1]:
        raise ValueError(f"codes {codes.shape}, scales {scales.shape}, zero points {zeros.shape}")
    parts = (codes, scales, zeros)
    return Int4Matrix(*(np.ascontiguousarray(part.T) for part in parts))


def _compressed(layer: str, read: Read, names: Mapping[str, Any], zeros_less_one: bool) -> Int4Matrix:
    shape = read(f"{layer}.weight_shape")
    if shape.dtype.kind != "i" or shape.shape != (2,) or shape.min() <= 0:
        raise ValueError(f"weight_shape {shape}")
    rows, columns = (int(size) for size in shape)
    codes = _along_columns(read(f"{layer}.weight_packed"))[:, :columns]
    scales = read(f"{layer}.weight_scale").reshape(rows, -1)
    zeros = np.full(scales.shape, _MIDDLE, np.uint8)
    if f"{layer}.weight_zero_point" in names:
        zeros = _along_rows(read(f"{layer}.weight_zero_point"))[:rows].reshape(scales.shape)
    if codes.shape != (rows, columns):
        raise ValueError(f"codes {codes.shape}, shape {(rows, columns)}")
    return Int4Matrix(np.ascontiguousarray(codes), scales, zeros)


_READERS: dict[str, Callable[[str, Read, Mapping[str, Any], bool], Int4Matrix]] = {
    "gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed,
}  # fmt: skip
