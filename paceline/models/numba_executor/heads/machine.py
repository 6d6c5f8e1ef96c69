"""`Machine`: runs programs of one draft network; it has the weights, buffers, rotary tables and the team of threads.

Results are in buffers of the machine and valid until its next run. Not for the programs themselves (`program.py` and
the networks).
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.rope import inverse_frequencies
from paceline.models.base import PAGE_SIZE, Rows
from paceline.models.compiled.disk import keep_on_disk
from paceline.models.compiled.kernel import machine_code
from paceline.models.numba_executor.arrays import Shape
from paceline.models.numba_executor.attend import new_attention_scratch
from paceline.models.numba_executor.gemm import PANEL, padded_rows
from paceline.models.numba_executor.heads.interpret import Batch, Store, Work, run
from paceline.models.numba_executor.heads.program import Buffer, Program
from paceline.models.numba_executor.kv_cache import GROUP, NumbaCache, flat, new_kv_cache
from paceline.models.numba_executor.operand import activations_of, new_operand
from paceline.models.numba_executor.reference import Kept
from paceline.models.numba_executor.sources import kernel_sources
from paceline.models.numba_executor.team import Team, new_slot


@cache
def compiled_run() -> Any:
    """`interpret.run`, kept on disk until a kernel changes."""
    return keep_on_disk(run, kernel_sources())


def shape_of_layers(layer: ModelConfig | None, num_layers: int) -> Shape:
    """Sizes of a draft's attention; those of a head without attention are never read."""
    heads, kv_heads, dim = (1, 1, PANEL) if layer is None else (
        layer.num_attention_heads, layer.num_key_value_heads, layer.head_dim
    )  # fmt: skip
    return Shape(
        layers=max(1, num_layers), cached=max(1, num_layers), hidden=0, inner=0, heads=heads, kv_heads=kv_heads,
        head_dim=dim, qkv=padded_rows((heads + 2 * kv_heads) * dim), vocab=0, scored=0, experts=0, top_k=0,
        shared_inner=0, norm_top_k=False, attention_scale=np.float32(dim**-0.5),
        page_dims=max(1, num_layers) * kv_heads * dim,
    )  # fmt: skip


class Machine:
    """What a network needs to run.

    Args:
        store: fields of `Store` but for the rotary tables.
        buffers: of the network.
        layer: sizes of its attention and its norms' epsilon; None for a network without attention.
        num_layers: layers with keys and values.
        team: threads, the target's own.
        dtype: of the weights; decides how activations are rounded for products.
        cache_dtype: of keys and values.
        eps: of the norms.
    """

    def __init__(self, store: dict[str, np.ndarray], buffers: Sequence[Buffer], layer: ModelConfig | None,
                 num_layers: int, team: Team, dtype: str, cache_dtype: str, eps: float) -> None:  # fmt: skip
        nothing = np.zeros(0, np.float32)
        self._store = Kept(Store(**store, rope_cos=nothing, rope_sin=nothing))
        self.shape = shape_of_layers(layer, num_layers)
        self._kept_shape = Kept(self.shape)
        self._buffers, self._layer, self._team = buffers, layer, team
        self.dtype, self._eps = dtype, np.float32(eps)
        self._cache_dtype = "float16" if cache_dtype == "int8" and self.shape.head_dim % GROUP else cache_dtype
        self._room = (0, 0, 0, 0)
        self._work: Kept[Work] | None = None
        self._run: Callable[..., None] | None = None
        self._no_cache = flat(np.zeros(0, self._cache_dtype))

    def new_cache(self, num_pages: int) -> NumbaCache:
        """An empty cache for the network's layers."""
        return new_kv_cache(self.shape, num_pages, self._cache_dtype)

    def reserve(self, num_rows: int, num_asked: int, context: int, num_operations: int) -> None:
        """Make room for a run: rows, asked rows, keys of the longest row, operations."""
        need = (num_rows, num_asked, context, num_operations)
        if self._work is None or any(n > r for n, r in zip(need, self._room, strict=True)):
            longer = context if context <= self._room[2] else 2 * context
            need = (num_rows, num_asked, longer, num_operations)
            room = tuple(max(n, r) for n, r in zip(need, self._room, strict=True))
            work = Kept(self._new_work(*room))
            self._work, self._room = work, room  # at once: an interrupt must not leave small buffers
        self._extend_tables(context)

    def floats(self, buffer: Buffer, num_rows: int) -> np.ndarray:
        """[num_rows, width] of a buffer, to fill before a run or to read after it."""
        assert self._work is not None
        work = self._work.value
        start = work.places[buffer.index, 0]
        return work.floats[start : start + num_rows * buffer.width].reshape(num_rows, buffer.width)

    def run(self, table: np.ndarray, batch: Batch, cache: NumbaCache | None) -> None:
        """Walk through the operations of `table`; `reserve` comes first."""
        assert self._work is not None
        self._work.value.counters[:] = 0
        keys, values = (self._no_cache, self._no_cache) if cache is None else (flat(cache.keys), flat(cache.values))
        args = (
            self._team.num_threads, table, self._kept_shape, self._eps, self._store, batch, self._work,
            keys, values,
        )  # fmt: skip
        if self._run is None:
            self._run = machine_code(compiled_run(), new_slot(), args)
        self._team.run(self._run, *args)

    def _extend_tables(self, context: int) -> None:
        """Rotary tables of the network's own layers, doubled when a longer context comes."""
        half = self.shape.head_dim // 2
        known = len(self._store.value.rope_cos) // half
        if self._layer is None or context <= known:
            return
        length = max(context, 2 * known, 1024)
        frequencies = inverse_frequencies(self._layer.rope_theta, 2 * half, self._layer.rope_inv_freq_scale)
        angles = np.arange(length)[:, None] * frequencies
        cos, sin = (f(angles).astype(np.float32).reshape(-1) for f in (np.cos, np.sin))
        self._store = Kept(self._store.value._replace(rope_cos=cos, rope_sin=sin))

    def _new_work(self, rows: int, asked: int, context: int, num_operations: int) -> Work:
        threads = self._team.num_threads
        places, size = np.zeros((len(self._buffers), 2), np.int64), {False: 0, True: 0}
        for buffer in self._buffers:
            places[buffer.index] = size[buffer.rounded], buffer.width
            size[buffer.rounded] += (asked if buffer.per_asked else rows) * buffer.width
        widest = max((b.width for b in self._buffers), default=PANEL)
        deepest = max((b.width for b in self._buffers if b.rounded), default=PANEL)

        def floats(*size: int) -> np.ndarray:
            return np.empty(size, np.float32)

        return Work(
            counters=np.zeros(num_operations + 1, np.int64),
            floats=floats(size[False]),
            codes=new_operand(size[True], activations_of(self.dtype)),
            places=places,
            row=floats(threads, widest),
            gate_up=floats(threads, max(rows, asked) * 2 * PANEL),
            wide=floats(threads, PANEL * deepest),
            attention=new_attention_scratch(threads, context, self.shape.head_dim),
        )


class Tables:
    """The operation tables of a network, made once per key (the number of levels, say)."""

    def __init__(self, build: Any) -> None:
        self._build, self._made = build, {}

    def __call__(self, *key: Any) -> np.ndarray:
        """The table of the program that `build(*key)` makes."""
        if key not in self._made:
            program: Program = self._build(*key)
            self._made[key] = program.table()
        return self._made[key]


def batch_of(rows: Rows, asked: np.ndarray, num_levels: int = 1) -> Batch:
    """The rows of a pass (span 0), then `num_levels` times a row per asked row (spans 1, 2, ...).

    The rows of span 1 + l hold what is drafted at level l: a token, which goes one position and one slot further than
    the row above it. `asked` [K] picks the rows of span 0 that the first of them come from.

    In lists and one array, for the reason that `models/rows` gives.
    """
    tokens, positions, slots, segments, natural, lengths = (
        column.tolist()
        for column in (
            rows.token_ids, rows.positions, rows.slots, rows.segments, rows.natural_lengths, rows.lengths
        )
    )  # fmt: skip
    picks, above, spans = [0] * len(tokens), asked.tolist(), [(0, len(tokens))]
    pages = rows.page_tables.tolist() if above else []
    for level in range(1, num_levels + 1):
        spans.append((len(tokens), len(above)))
        for row in above:
            position, table = positions[row] + level, pages[segments[row]]
            tokens.append(0)
            positions.append(position)
            slots.append(table[min(position // PAGE_SIZE, len(table) - 1)] * PAGE_SIZE + position % PAGE_SIZE)
            segments.append(segments[row])
            natural.append(position + 1)
            lengths.append(position + 1)
            picks.append(row)
    numbers = np.array((tokens, positions, slots, picks, segments, natural, lengths), np.int32)
    drafted, branches = len(tokens) - len(rows.token_ids), rows.branch_slots
    return Batch(
        token_ids=numbers[0],
        positions=numbers[1],
        slots=numbers[2],
        picks=numbers[3],
        top_probs=np.zeros(len(tokens), np.float32),
        segments=numbers[4],
        page_tables=np.ascontiguousarray(rows.page_tables, np.int32),
        natural_lengths=numbers[5],
        branch_slots=(
            np.pad(branches, ((0, drafted), (0, 0)), constant_values=-1)
            if branches.shape[1]
            else np.empty((len(tokens), 0), np.int32)
        ),
        num_keys=numbers[6],
        spans=np.array(spans, np.int64),
    )


def batch_of_blocks(rows: Rows) -> Batch:
    """The rows of blocks of one size (span 0) with the same number of asked places, which are drafted one by one.

    Span 1 are all asked places, first those of all blocks' first place; spans 2, 3, .. have a row per block: its
    anchor, then what its places draft.
    """
    num_rows, blocks = len(rows.token_ids), len(rows.page_tables)
    picks = rows.logit_rows.reshape(blocks, -1).T
    anchors = rows.token_ids[:: num_rows // blocks]
    more = blocks + picks.size
    spans = [(0, num_rows), (num_rows + blocks, picks.size)]
    spans += [(num_rows + place * blocks, blocks) for place in range(len(picks) + 1)]
    return batch_of(rows, np.zeros(more, np.int32))._replace(
        token_ids=_longer(rows.token_ids, np.concatenate([anchors, np.zeros(picks.size, np.int32)])),
        picks=_longer(np.zeros(num_rows + blocks, np.int32), picks.reshape(-1)),
        spans=np.array(spans, np.int64),
    )


def batch_of_waves(tokens: np.ndarray, positions: np.ndarray, slots: np.ndarray, above: np.ndarray,
                   sizes: Sequence[int]) -> Batch:  # fmt: skip
    """Rows (span 0) in waves, each of which continues earlier rows; `sizes` [waves] are their numbers of rows.

    Spans 1 + 2 w and 2 + 2 w are both the rows of wave w: in the first, GATHER reads their predecessors `above` [n], in
    the second the rows themselves.
    """
    count = len(tokens)
    starts = np.cumsum([0, *sizes[:-1]])
    spans = [(0, count)]
    for start, size in zip(starts.tolist(), sizes, strict=True):
        spans += [(start, size), (count + start, size)]
    return batch_of_states(np.concatenate([tokens, tokens]))._replace(
        positions=np.asarray(positions, np.int32), slots=np.asarray(slots, np.int32),
        picks=_longer(above, np.arange(count)), spans=np.array(spans, np.int64),
    )  # fmt: skip


def batch_of_states(tokens: np.ndarray, num_levels: int = 0) -> Batch:
    """Rows without positions and slots, for networks that read only states and `tokens` [n] (span 0).

    They are followed by n rows for each of `num_levels` drafted levels (spans 1, 2, ...); the last span is all of them.
    """
    count, drafted = len(tokens), len(tokens) * num_levels
    nothing = np.zeros(count + drafted, np.int32)
    spans = [*((level * count, count) for level in range(num_levels + 1)), (count, drafted)]
    return Batch(
        token_ids=_longer(tokens, np.zeros(drafted, np.int32)), positions=nothing, slots=nothing, picks=nothing,
        top_probs=np.zeros(len(nothing), np.float32), segments=nothing, page_tables=np.zeros((1, 1), np.int32),
        natural_lengths=nothing, branch_slots=np.zeros((len(nothing), 0), np.int32), num_keys=nothing,
        spans=np.array(spans, np.int64),
    )  # fmt: skip


def _longer(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.concatenate([first, second]).astype(np.int32, copy=False)
