"""Paged keys and values in float32, float16 or 8 bits, and how those of a token are written.

A page holds 16 tokens of all layers, so that a short text touches few huge pages of 2 MiB. Per layer and key-value head
it has keys [head_dim, 16 tokens] and values [16 tokens, head_dim]. In 8 bits each 32 numbers of a token share a float16
scale, largest magnitude / 127 (the groups of llama.cpp's Q8_0). The scales [head_dim / 32, 16 tokens] follow a page's
keys; head_dim / 32 scales follow each token's value. Rounding depends on one token only, so a row's result still does
not depend on which rows share its pass. Not for reading in a pass (`attention.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from paceline.errors import InvalidParameter
from paceline.models.architecture.recurrence import Recurrence
from paceline.models.base import PAGE_SIZE
from paceline.models.compiled.kernel import OPTIONS, kernel
from paceline.models.numba_executor import halves
from paceline.models.numba_executor import vector as v
from paceline.models.state_book import KeepsStates, StateStore

CACHE_DTYPES = ("float32", "float16", "int8")
GROUP = 32
"""Numbers of a token's key or value that share a scale in 8 bits."""
SCALE_BYTES = 2
Stored = tuple[np.ndarray, np.ndarray]
_LARGEST = np.float32(127)
_HALF_IR = ir.HalfType()


class NumbaCache:
    """Paged keys [pages, layers, kv_heads, head_dim, 16] and values [pages, layers, kv_heads, 16, head_dim].

    Layers are those with attention.

    `stored` are keys and values [pages, elements] to use, parts of a larger cache; new ones by default.
    """

    def __init__(self, shape: Any, num_pages: int, dtype: str, stored: Stored | None = None) -> None:
        self.num_pages = num_pages
        common = (num_pages, shape.cached, shape.kv_heads)
        keys, values = stored or (None, None)
        self.keys = _pages(keys, (*common, shape.head_dim, PAGE_SIZE), dtype)
        self.values = _pages(values, (*common, PAGE_SIZE, shape.head_dim), dtype)

    @property
    def num_bytes(self) -> int:
        """See `KVCache.num_bytes`."""
        return self.keys.nbytes + self.values.nbytes

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy slots, all reads before any write."""
        page, place = np.divmod(np.asarray(sources), PAGE_SIZE)
        keys, values = self.keys[page, ..., place], self.values[page, :, :, place]
        page, place = np.divmod(np.asarray(destinations), PAGE_SIZE)
        self.keys[page, ..., place], self.values[page, :, :, place] = keys, values

    def read(self, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values [layers, len(slots), kv_heads, head_dim]."""
        page, place = np.divmod(np.asarray(slots), PAGE_SIZE)
        keys, values = self.keys[page, ..., place], self.values[page, :, :, place]
        return keys.swapaxes(0, 1), values.swapaxes(0, 1)

    def write(self, slots: Sequence[int] | np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """See `TakesKeys.write`."""
        page, place = np.divmod(np.asarray(slots), PAGE_SIZE)
        self.keys[page, ..., place], self.values[page, :, :, place] = keys.swapaxes(0, 1), values.swapaxes(0, 1)


class RoundedCache(NumbaCache):
    """A cache in 8 bits: bytes [pages, layers, kv_heads, bytes of a page] of keys and of values."""

    def __init__(self, shape: Any, num_pages: int, stored: Stored | None = None) -> None:
        self.num_pages, dim = num_pages, shape.head_dim
        size = PAGE_SIZE * row_bytes(dim)
        common = (num_pages, shape.cached, shape.kv_heads)
        self.keys, self.values = (_pages(kind, (*common, size), "int8") for kind in stored or (None, None))
        codes, scales = self.keys[..., : dim * PAGE_SIZE], self.keys[..., dim * PAGE_SIZE :]
        self._keys = codes.reshape(*common, dim, PAGE_SIZE)
        self._key_scales = scales.view(np.float16).reshape(*common, dim // GROUP, PAGE_SIZE)
        self._rows = self.values.reshape(*common, PAGE_SIZE, row_bytes(dim))
        self._dim = dim

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """See `NumbaCache.move`."""
        page, place = np.divmod(np.asarray(sources), PAGE_SIZE)
        to, at = np.divmod(np.asarray(destinations), PAGE_SIZE)
        keys, scales = self._keys[page, ..., place], self._key_scales[page, ..., place]
        rows = self._rows[page, :, :, place]
        self._keys[to, ..., at], self._key_scales[to, ..., at], self._rows[to, :, :, at] = keys, scales, rows

    def read(self, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """See `NumbaCache.read`; float32."""
        page, place = np.divmod(np.asarray(slots), PAGE_SIZE)
        rows = np.ascontiguousarray(self._rows[page, :, :, place])
        keys = _widened(self._keys[page, ..., place], self._key_scales[page, ..., place])
        values = _widened(rows[..., : self._dim], rows[..., self._dim :].view(np.float16))
        return keys.swapaxes(0, 1), values.swapaxes(0, 1)

    def write(self, slots: Sequence[int] | np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """See `TakesKeys.write`."""
        page, place = np.divmod(np.asarray(slots), PAGE_SIZE)
        self._keys[page, ..., place], self._key_scales[page, ..., place] = _rounded(keys.swapaxes(0, 1))
        codes, scales = _rounded(values.swapaxes(0, 1))
        self._rows[page, :, :, place] = np.concatenate([codes, scales.view(np.int8)], axis=-1)


class StatefulCache(KeepsStates, NumbaCache):
    """`cache`, of a model with recurrent layers, with their states; see `HoldsStates`."""

    def __init__(self, cache: NumbaCache, recurrence: Recurrence) -> None:
        self._cache, self.store = cache, StateStore(recurrence)
        self.num_pages, self.keys, self.values = cache.num_pages, cache.keys, cache.values

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """See `NumbaCache.move`; states go to their new slots."""
        self._cache.move(sources, destinations)
        self.store.book.move(sources, destinations)

    def read(self, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """See `NumbaCache.read`."""
        return self._cache.read(slots)

    def write(self, slots: Sequence[int] | np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """See `TakesKeys.write`."""
        self._cache.write(slots, keys, values)


def _rounded(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes [.., dim] int8 and scales [.., dim / 32] float16 of numbers [.., dim], as `write_token` rounds them."""
    groups = numbers.reshape(*numbers.shape[:-1], -1, GROUP)
    scales = (np.abs(groups).max(axis=-1) / _LARGEST).astype(np.float16)
    factors = np.divide(1, scales, out=np.zeros(scales.shape, np.float32), where=scales > 0, dtype=np.float32)
    codes = np.rint(np.clip(groups * factors[..., None], -_LARGEST, _LARGEST)).astype(np.int8)
    return codes.reshape(numbers.shape), scales


def _widened(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """[.., dim] codes times [.., dim / 32] scales."""
    return codes.astype(np.float32) * np.repeat(scales.astype(np.float32), GROUP, axis=-1)


def _pages(stored: np.ndarray | None, size: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.zeros(size, dtype) if stored is None else stored.reshape(size)


def new_kv_cache(shape: Any, num_pages: int, dtype: str, stored: Stored | None = None) -> NumbaCache:
    """An empty cache for the layers of a `Shape`, in one of `CACHE_DTYPES`; `stored` as of `NumbaCache`."""
    return RoundedCache(shape, num_pages, stored) if dtype == "int8" else NumbaCache(shape, num_pages, dtype, stored)


def choose_cache_dtype(name: str, default: str, head_dims: Collection[int]) -> str:
    """The storage of keys and values that was asked for; `default` for ``auto``.

    Raises:
        InvalidParameter: unknown, or 8 bits for heads that cannot be cut into groups of 32.
    """
    if name not in ("auto", *CACHE_DTYPES):
        raise InvalidParameter("kv_cache_dtype", f"{name!r} is unknown", f"use auto, {', '.join(CACHE_DTYPES)}")
    uneven = [dim for dim in head_dims if dim % GROUP]
    if name == "int8" and uneven:
        problem = f"int8 rounds {GROUP} numbers together, and the {uneven[0]} of a head cannot be cut so"
        raise InvalidParameter("kv_cache_dtype", problem, "use float16")
    return default if name == "auto" else name


def row_bytes(head_dim: int) -> int:
    """Bytes of a token's key or value in 8 bits, scales included."""
    return head_dim + head_dim // GROUP * SCALE_BYTES


def flat(cached: np.ndarray) -> np.ndarray:
    """Flat keys or values for kernels; float16 is viewed as int16, as Numba has no float16."""
    return cached.reshape(-1).view(np.int16 if cached.dtype == np.float16 else cached.dtype)


def row_elements(cached, head_dim):
    """Elements of a token's value, or of a key page per token; compiled code only."""
    raise NotImplementedError


@overload(row_elements, jit_options=OPTIONS)
def _row_elements(cached, head_dim):
    if cached.dtype == types.int8:
        return lambda cached, head_dim: head_dim + head_dim // GROUP * SCALE_BYTES
    return lambda cached, head_dim: head_dim


@kernel
def page_elements(cached, shape):
    """Elements of a page of keys or of values, of all layers and key-value heads."""
    return row_elements(cached, shape.page_dims) * PAGE_SIZE


@kernel
def first_element(cached, shape, page, before, head):
    """Index of a page's first element of a head, in a layer that has `before` dimensions of others before it."""
    return row_elements(cached, page * shape.page_dims + before + head * shape.head_dim) * PAGE_SIZE


def write_token(keys, values, start, place, head_dim, source, key, value):
    """Write a token's key, which begins at source[key], and its value to `place` of the page at `start` of flat caches.

    Compiled code only.
    """
    raise NotImplementedError


@overload(write_token, jit_options=OPTIONS)
def _write_token(keys, values, start, place, head_dim, source, key, value):
    def floats(keys, values, start, place, head_dim, source, key, value):
        for i in range(0, head_dim, v.LANES):
            v.scatter(keys, start + i * PAGE_SIZE + place, PAGE_SIZE, v.load(source, key + i))
            v.store(values, start + place * head_dim + i, v.load(source, value + i))

    def rounded(keys, values, start, place, head_dim, source, key, value):
        row, scales = start + place * row_elements(values, head_dim), start + head_dim * PAGE_SIZE
        for i in range(0, head_dim, GROUP):
            group = i // GROUP
            at = scales + SCALE_BYTES * (group * PAGE_SIZE + place)
            _write_group(source, key + i, keys, start + i * PAGE_SIZE + place, PAGE_SIZE, at)
            _write_group(source, value + i, values, row + i, 1, row + head_dim + SCALE_BYTES * group)

    return rounded if keys.dtype == types.int8 else floats


@kernel
def _write_group(source, start, out, first, stride, scale_at):
    """Write 32 numbers as codes `stride` apart from out[first] on, and their scale at the byte `scale_at`."""
    low, high = v.load(source, start), v.load(source, start + v.LANES)
    zero = v.splat(np.float32(0))
    magnitude = v.maximum(v.maximum(low, v.sub(zero, low)), v.maximum(high, v.sub(zero, high)))
    scale = _store_scale(out, scale_at, v.max_lanes(magnitude) / _LARGEST)
    factor = v.splat(np.float32(1) / scale if scale > 0 else np.float32(0))
    _scatter_codes(out, first, stride, v.mul(low, factor))
    _scatter_codes(out, first + v.LANES * stride, stride, v.mul(high, factor))


@intrinsic
def _store_scale(typingctx, array, index, value):
    """Write a float32 as float16 at byte `index`; returns the rounded value."""

    def emit(context, builder, sig, args):
        pointer = v.element_pointer(context, builder, array, args[0], args[1])
        half = halves.narrow_ir(context, builder, args[2])
        builder.store(half, builder.bitcast(pointer, _HALF_IR.as_pointer()), align=1)
        return halves.widen_ir(context, builder, half)

    return types.float32(array, types.intp, types.float32), emit


@intrinsic
def _scatter_codes(typingctx, array, index, stride, value):
    """Element index + i * stride = lane i, rounded to even, clamped to -127 .. 127."""

    def emit(context, builder, sig, args):
        pointer = v.element_pointer(context, builder, array, args[0], args[1])
        kind, most = ir.VectorType(ir.IntType(32), v.LANES), ir.Constant(v.VECTOR_IR, [127.0] * v.LANES)
        least = ir.Constant(v.VECTOR_IR, [-127.0] * v.LANES)
        held = builder.select(builder.fcmp_ordered("<", args[3], most), args[3], most)
        held = builder.select(builder.fcmp_ordered(">", held, least), held, least)
        codes = builder.fptosi(v.call(builder, "llvm.rint.v16f32", v.VECTOR_IR, [held]), kind)
        codes = builder.trunc(codes, ir.VectorType(ir.IntType(8), v.LANES))
        for i in range(v.LANES):
            code = builder.extract_element(codes, ir.Constant(ir.IntType(32), i))
            builder.store(code, builder.gep(pointer, [builder.mul(args[2], args[2].type(i))]))
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, v.vector), emit
