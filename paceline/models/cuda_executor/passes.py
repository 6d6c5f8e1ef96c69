"""`Passes`: passes over rows in static shapes, each shape recorded once as a graph, and draft chains of passes.

A network is a function of staged rows, defined in `model.py` and `heads/`. Outputs stay on the device.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from paceline.models.architecture.config import ModelConfig
from paceline.models.base import PAGE_SIZE, Rows
from paceline.models.cuda_executor.attention import AttentionName, rows_of_tile
from paceline.models.cuda_executor.graphs import Graph, GraphCapture, Outputs, graphs_of, on_device
from paceline.models.cuda_executor.laws.chains import Picks
from paceline.models.cuda_executor.lookups import FEW_ROWS, LONGEST_LOOKED_UP, Lookups
from paceline.models.cuda_executor.paged_rows import PagedRows, num_splits
from paceline.models.cuda_executor.staging import LARGEST, Staging, asked_bucket, bucket_of, chain_bucket
from paceline.models.torch_executor.cache import TorchKVCache

Compute = Callable[[PagedRows, int, Sequence[Tensor]], Outputs]
"""(rows, number of logit rows, input tensors [rows, n]) to logits [logit rows, n] and other outputs."""
Advance = Callable[[Tensor, int], None]
"""Changes packed rows in place, given their padded number."""
AdvanceChain = Callable[[Tensor, int, int], None]
"""Changes the packed rows of a chain in place, given the padded numbers of rows and of those of each level."""
Begin = Callable[[PagedRows, Tensor, Sequence[Tensor]], Outputs]
"""(rows, indices [n] of some, inputs of all) to logits [n, columns] and states [n, ..] of those."""
Below = Callable[[PagedRows, Tensor, Sequence[Tensor]], Outputs]
"""(rows, their tokens [rows], states of their parents) to logits [rows, n] and states of all rows."""


class CudaKVCache(TorchKVCache):
    """Paged keys and values, a spare slot for padded rows, and the graphs that were recorded over them.

    Args:
        kernels: whether Triton's kernels are used.

    Attributes:
        changes: number of writes so far.
        lookups: for passes of prompt lookup that are launched ahead; None without.
    """

    def __init__(
        self, config: ModelConfig, num_pages: int, device: torch.device, dtype: torch.dtype, kernels: bool = False
    ) -> None:
        super().__init__(config, num_pages, device, dtype, spare_slots=1)
        self.kernels = kernels
        self.spare_slot = num_pages * PAGE_SIZE
        self.graphs: dict[tuple, tuple[Graph, Sequence[Tensor]]] = {}
        self.changes = 0
        self.lookups: Lookups | None = None

    def _move(self, source: Tensor, destination: Tensor) -> None:
        self.changes += 1
        super()._move(source, destination)
        if self.lookups is not None:
            self.lookups.move(source, destination)

    def _index(self, slots: Sequence[int] | np.ndarray) -> Tensor:
        """Slots on the device, in order of launches: a copy from other memory than pinned would wait for passes."""
        index = torch.from_numpy(np.asarray(slots, dtype=np.int64))
        if self.device.type == "cuda":
            index = index.pin_memory()
        return index.to(self.device, non_blocking=True)

    def look_up(self, longest: int, shortest: int, earliest: bool, num_drafts: int) -> int:
        """See `LooksUp`; before the first pass."""
        if num_drafts >= FEW_ROWS or longest > LONGEST_LOOKED_UP:
            return 0
        texts = torch.zeros(self.spare_slot + 1, dtype=torch.int32, device=self.device)
        self.lookups = Lookups(longest, shortest, earliest, texts, self.kernels)
        with on_device(self.device):
            self.lookups.warm_up()
        return 2 * num_drafts

    def write(self, slots: Sequence[int] | np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """See `TakesKeys.write`."""
        self.changes += 1
        super().write(slots, keys, values)


class Launched(NamedTuple):
    """Outputs of a pass, on the device.

    Attributes:
        logits: [K, vocab] float32.
        states: [M, taps * hidden], the taps side by side; None without taps.
        peaks: [K, 2] of the logits, see `laws.peaks_of`.
    """

    logits: Tensor
    states: Tensor | None
    peaks: Tensor


class Passes:
    """The passes of one network.

    Args:
        config: config of its layers.
        num_logits: number of columns of its logits.
        device: its device.
        attention: name of the attention of its layers.
        capture: creates graphs; by default `graphs_of` the device.
        asks_host: whether a layer needs the host in the middle of a pass, which then cannot be recorded.

    Attributes:
        records: whether passes are recorded as graphs.
        num_launched: number of passes so far.
    """

    def __init__(
        self, config: ModelConfig, num_logits: int, device: torch.device, attention: AttentionName,
        capture: GraphCapture | None = None, asks_host: bool = False,
    ) -> None:  # fmt: skip
        self.device = device
        self.attention: AttentionName = attention
        self._tile = min(rows_of_tile(attention, group) for group in config.head_groups)
        self._staging = Staging(config, device)
        waits = attention == "by_position" and device.type == "cuda"
        self.records = attention != "sdpa" and not asks_host and not waits
        self.capture = capture or graphs_of(device)
        self._num_logits, self._logits = num_logits, torch.empty(0)
        self.num_launched = 0

    def run(
        self, rows: Rows, cache: CudaKVCache, name: tuple, compute: Compute, fed: Sequence[Tensor] = (),
        advance: Advance | None = None, once: bool = False,
    ) -> Outputs:  # fmt: skip
        """Outputs of `compute` for `rows`, on the device and possibly with padding rows; valid until the next pass.

        Args:
            name: distinguishes `compute` from other functions over the same cache.
            fed: inputs [M, n] float32 of the rows, on the device or the host.
            advance: changes the packed rows on the device before the pass; only for rows that fit a graph.
            once: record nothing, since recording executes a pass more than once.
        """
        asked = len(rows.logit_rows)
        self._count(cache)
        with on_device(self.device):
            how = (cache.spare_slot, self._tile, num_splits(rows))
            if not self.fits(rows):
                placed = self._staging.place_apart(rows, *how)
                return compute(placed, asked, [one.to(self.device) for one in fed])
            placed = self._staging.place(rows, *how)
            key = _key(rows, name, how[-1])
            *_, bucket, count, _ = key
            if advance is not None:
                advance(self._staging.packed, bucket)
            if once and key not in cache.graphs:
                return compute(placed, count, fed)
            return self._replay(cache, key, lambda static: compute(placed, count, static), fed, bucket)

    def fits(self, rows: Rows) -> bool:
        """Whether a pass over `rows` can be run as a graph."""
        return self.records and self._staging.fits(rows)

    def fit_chain(self, rows: Rows, num_levels: int) -> bool:
        """Whether `rows` and `num_levels` levels after them can be run as a graph."""
        return self.records and self._staging.fits_chain(rows, num_levels)

    def has_recorded(self, rows: Rows, cache: CudaKVCache, name: tuple) -> bool:
        """Whether there is a graph for a pass over `rows`, so that `run` executes it only once.

        Recording executes the pass more than once; a pass that reads results of the previous pass from the device
        would then read its own.
        """
        return self.fits(rows) and _key(rows, name, num_splits(rows)) in cache.graphs

    def _count(self, cache: CudaKVCache) -> None:
        cache.changes += 1
        self.num_launched += 1

    def chain(
        self, rows: Rows, cache: CudaKVCache, name: tuple, begin: Begin, num_tokens: int, below: Below, picks: Picks,
        fed: Sequence[Tensor] = (), advance: AdvanceChain | None = None,
    ) -> Tensor:  # fmt: skip
        """[2, levels, requests] float64: chains of `num_tokens` tokens after the logit rows of `rows`, and the largest
        probabilities, valid until the next chain; all as one graph.

        Args:
            name, fed: as of `run`.
            begin: the pass over `rows`.
            below: a pass over one level.
            picks: of tokens, with draws for the logit rows.
            advance: changes the packed rows on the device before that; only for rows that `fit_chain`.
        """
        size, num_levels = len(rows.logit_rows), num_tokens - 1
        self._count(cache)
        with on_device(self.device):
            how = (cache.spare_slot, self._tile, num_splits(rows, num_levels))
            if self.fit_chain(rows, num_levels):
                table = self._chained(rows, num_levels, how, cache, name, begin, below, picks, fed, advance)
            else:
                placed, lower = self._staging.place_chain_apart(rows, num_levels, *how)
                given = [one.to(self.device) for one in fed]
                table = _picked(begin(placed, placed.logit_rows[:size], given), lower, below, picks)
        return table[:, :, :size]

    def _chained(
        self, rows: Rows, num_levels: int, how: tuple[int, int, int], cache: CudaKVCache, name: tuple,
        begin: Begin, below: Below, picks: Picks, fed: Sequence[Tensor], advance: AdvanceChain | None,
    ) -> Tensor:  # fmt: skip
        """The table of `_picked`, possibly with padding rows."""
        placed, lower = self._staging.place_chain(rows, num_levels, *how)
        bucket, own = cast(int, chain_bucket(rows)), cast(int, bucket_of(len(rows.logit_rows)))
        if advance is not None:
            advance(self._staging.packed, bucket, own)
        drawn = () if picks.draws is None else (picks.draws,)

        def compute(static: Sequence[Tensor]) -> Outputs:
            staged = replace(picks, draws=static[-1][:own] if drawn else None)
            begun = begin(placed, placed.logit_rows[:own], static[: len(fed)])
            return (_picked(begun, lower, below, staged),)

        key = (*name, "chain", num_levels, bucket, own, how[-1], picks.form)
        [table] = self._replay(cache, key, compute, (*fed, *drawn), bucket, gives_logits=False)
        return table

    def _replay(
        self, cache: CudaKVCache, key: tuple, compute: Callable[[Sequence[Tensor]], Outputs], fed: Sequence[Tensor],
        num_rows: int, gives_logits: bool = True,
    ) -> Outputs:  # fmt: skip
        """Run the graph with this key, recording it the first time, on the inputs `fed` padded to `num_rows`."""
        if key not in cache.graphs:
            static = [torch.zeros(num_rows, *one.shape[1:], dtype=one.dtype, device=self.device) for one in fed]
            fill(static, fed)
            recorded = self._into_place(compute) if gives_logits else compute
            cache.graphs[key] = self.capture(lambda: recorded(static)), static
        graph, static = cache.graphs[key]
        fill(static, fed)
        return graph()

    def place_of_logits(self, count: int) -> Tensor | None:
        """The buffer [count, columns] that all graphs share for their logits; None for more than `LARGEST` rows."""
        if count > LARGEST or not self.records:
            return None
        if not len(self._logits):
            self._logits = torch.empty(LARGEST, self._num_logits, device=self.device)
        return self._logits[:count]

    def _into_place(self, compute: Callable[[Sequence[Tensor]], Outputs]) -> Callable[[Sequence[Tensor]], Outputs]:
        """`compute` with logits in `place_of_logits`, if they are not there already."""

        def recorded(static: Sequence[Tensor]) -> Outputs:
            logits, *others = compute(static)
            place = self.place_of_logits(len(logits))
            assert place is not None
            return logits if logits.data_ptr() == place.data_ptr() else place.copy_(logits), *others

        return recorded


def _key(rows: Rows, name: tuple, splits: int) -> tuple:
    """Key of the graph of a pass over `rows`: (*name, bucket of rows, of logit rows, number of splits)."""
    bucket = cast(int, bucket_of(len(rows.token_ids)))
    return (*name, bucket, asked_bucket(len(rows.logit_rows), bucket), splits)


def _picked(begun: Outputs, levels: Sequence[PagedRows], below: Below, picks: Picks) -> Tensor:
    """[2, levels + 1, rows] float64: the tokens of chains, and the largest probabilities."""
    logits, *states = begun
    tokens, probs = [], []
    for level, placed in enumerate([*levels, None]):
        token, prob = picks.at(level, logits)
        tokens.append(token)
        probs.append(prob)
        if placed is not None:
            logits, *states = below(placed, tokens[-1], states)
    return torch.stack([torch.stack(tokens).double(), torch.stack(probs).double()])


def fill(static: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copy the rows of `given` to the beginning of larger tensors."""
    for kept, one in zip(static, given, strict=True):
        kept[: len(one)].copy_(one)
