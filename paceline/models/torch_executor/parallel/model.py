"""`ParallelModel`: rank 0 of a parallel run, which implements `CausalLM` for the engine.

Only rank 0 knows requests, drafts and verdicts. The other ranks receive rows and moves of cache slots, so ranks cannot
disagree about an accepted token: there is one decision, and every rank's part of the cache follows it.
"""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from paceline.errors import InvalidParameter
from paceline.models.architecture.config import ModelConfig
from paceline.models.base import NORMED, PAGE_SIZE, ForwardOutput, KVCache, Rows, checked_layers
from paceline.models.dtypes import DtypeChoice
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor.model import check_rows
from paceline.models.torch_executor.parallel.launch import Workers
from paceline.models.torch_executor.parallel.layout import Layout
from paceline.models.torch_executor.parallel.line import Line
from paceline.models.torch_executor.parallel.links import Rendezvous
from paceline.models.torch_executor.parallel.messages import Command, arrays_of, integers
from paceline.models.torch_executor.parallel.ranks import Ranks
from paceline.models.torch_executor.parallel.worker import Assignment
from paceline.speculation.prices import CPU_BALANCE, GPU_BALANCE
from paceline.theory.distributed_draft import ALL_REDUCES_PER_LAYER, Chip

MICROBATCH_ROWS = 64
"""Least rows of a micro-batch. Each part of a pass reads all weights again, which costs as much as some 25 rows in
float32 on one processor. Two parts over two stages take as long as one below this many rows each, and less above."""
_LEAST_READING = 0.1
"""Smallest share of a pass that counts as reading weights, whatever the measured time of its all-reduces."""


class ParallelCache:
    """Handle of a KV cache that is distributed over the ranks."""

    def __init__(self, number: int, num_pages: int, num_bytes: int, tell: Callable[..., Any]) -> None:
        self.number, self._num_pages, self._num_bytes, self._tell = number, num_pages, num_bytes, tell

    @property
    def num_pages(self) -> int:
        """See `KVCache.num_pages`; the same on every rank."""
        return self._num_pages

    @property
    def num_bytes(self) -> int:
        """Bytes on all ranks; key heads that several ranks hold count several times."""
        return self._num_bytes

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """As `KVCache.move`, on every rank."""
        if len(sources):
            self._tell(Command.MOVE, integers(self.number), integers(*sources), integers(*destinations))

    def read(self, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """As `KVCache.read`: all layers and key heads, gathered from the ranks."""
        return self._tell(Command.READ, integers(self.number), integers(*slots))


class ParallelModel:
    """Scores rows together with the other ranks. `launch_model` makes one with workers on this machine.

    Args:
        assignment: of rank 0.
        start_others: starts the other ranks, given the rendezvous. None when they are started by other means
            (`run_worker`, with the same rendezvous).
        microbatch_rows: least rows of a micro-batch; a pass is split into at most one per stage. May be changed.

    Raises:
        WorkerDied: a worker ended, with its traceback, or did not come within the rendezvous' timeout.
    """

    is_row_invariant = False

    def __init__(
        self,
        assignment: Assignment,
        start_others: Callable[[Rendezvous], Workers] | None = None,
        microbatch_rows: int = MICROBATCH_ROWS,
    ) -> None:
        self.layout, self.dtype_choice = assignment.layout, DtypeChoice(assignment.dtype)
        self.microbatch_rows, self._dtype = microbatch_rows, getattr(torch, assignment.dtype)
        self.on_cpu = assignment.device == "cpu"
        self._line = Line()
        self._first_stage_is_free: Callable[[], None] = lambda: None
        self.ranks = Ranks(assignment, start_others)
        self.workers = self.ranks.workers

    @property
    def config(self) -> ModelConfig:
        """See `CausalLM.config`; the whole model's."""
        return self.layout.config

    @property
    def description(self) -> str:
        """Executor and degrees, tensor x pipeline; what a pass costs depends on all of them."""
        return f"{type(self).__name__} {self.layout.tensor_size}x{len(self.layout.stages)}"

    def new_cache(self, num_pages: int) -> ParallelCache:
        """An empty cache of `num_pages` pages, of which every rank holds its part."""
        number = self.ranks.number_of_cache()
        self._tell(Command.NEW_CACHE, integers(number, num_pages))
        cache = ParallelCache(number, num_pages, self._cache_bytes(num_pages), self._tell)
        self.ranks.drop_with(cache, number)
        return cache

    def forward(self, rows: Rows, cache: KVCache, taps: tuple[int, ...] = ()) -> ForwardOutput:
        """One pass over `rows` (see `CausalLM.forward`), in micro-batches where there are enough rows.

        Raises:
            InvalidParameter: a cache of another executor, or a row or tap outside the model.
            WorkerDied: a rank is gone; the model cannot be used any more.
        """
        return self.run_layers(range(self.config.num_hidden_layers), rows, cache, taps)

    def with_layers(self, layers: Sequence[int]) -> "LayerSubset":
        """See `SkipsLayers`."""
        return LayerSubset(self, checked_layers(layers, self.config.num_hidden_layers))

    def run_layers(self, layers: Sequence[int], rows: Rows, cache: KVCache, taps: tuple[int, ...]) -> ForwardOutput:
        """As `forward`, but only `layers` are run; skipped layers have no taps."""
        if not isinstance(cache, ParallelCache):
            raise InvalidParameter("cache", f"is a {type(cache).__name__}", "make it with this model's new_cache")
        check_rows(self.config, rows, taps)
        num_parts = max(1, min(len(self.layout.stages), len(rows.token_ids) // self.microbatch_rows))
        asked = [tap for tap in taps if tap in layers or tap in (self.config.num_hidden_layers, NORMED)]
        settings = integers(cache.number, num_parts), integers(*layers), integers(*asked)
        return self._tell(Command.FORWARD, *settings, *arrays_of(rows))

    def keep_passes_whole(self) -> None:
        """See `RunsInParts`."""
        self.microbatch_rows = sys.maxsize

    def when_first_stage_is_free(self, call: Callable[[], None]) -> None:
        """See `RunsInParts`."""
        self._first_stage_is_free = call

    def measure(self, rows: Rows, repeats: int = 5) -> tuple[list[float], list[int]]:
        """(median seconds of a pass over `rows`, bytes of weights) of every rank, in order of rank.

        The stages take turns, so that they do not disturb each other where they share a machine.
        """
        cache = self.new_cache(int(rows.page_tables.max()) + 1)
        found = self._tell(Command.MEASURE, integers(cache.number, repeats), *arrays_of(rows))
        return [float(seconds) for seconds, _ in found], [int(weights) for _, weights in found]

    @property
    def tensor_parallel_size(self) -> int:
        """See `RunsOnRanks`."""
        return self.layout.tensor_size

    @property
    def largest_cache_share(self) -> float:
        """See `RunsOnRanks`."""
        return self.layout.largest_cache_share

    @property
    def least_free_bytes(self) -> int | None:
        """See `RunsOnRanks`."""
        return self.ranks.least_free_bytes

    def can_share(self, config: ModelConfig) -> bool:
        """See `RunsOnRanks`."""
        return self.layout.can_share(config)

    def chip(self, repeats: int = 20) -> Chip:
        """See `RunsOnRanks`; the time of a pass over one row without its all-reduces counts as reading weights."""
        joining = max(float(seconds[0]) for seconds in self._tell(Command.JOIN, integers(repeats)))
        seconds, weights = self.measure(build_rows([Part(range(1), 0, [0])]), repeats)
        return measured_chip(self.layout, seconds[0], joining, weights[0], self.on_cpu)

    def close(self) -> None:
        """End the workers. May be called again; afterwards the model cannot be used."""
        self.ranks.close(lambda: self._tell(Command.CLOSE))

    def __enter__(self) -> "ParallelModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, command: Command, *arrays: np.ndarray) -> Any:
        """Have every rank execute `command`, and return the result of this rank.

        Several threads may call at once; their commands reach all ranks in the same order. The next command is sent
        when the first stage has finished its part of a pass, so that there can be one pass per stage at a time.
        """
        ranks = self.ranks
        with ranks.door:
            links, rank = ranks.joined()
            turn = self._line.take()
            try:
                message = ranks.tell(command, *arrays)
                if command is not Command.FORWARD:
                    self._line.wait_for(turn)
                rest = rank.begin(message)
                if command is Command.FORWARD:
                    self._first_stage_is_free()
                else:
                    links.flush(links.take_sent())
            except BaseException as error:  # out of step with the others, whatever it was
                self._line.leave(turn)
                ranks.give_up(error)
                raise
        try:
            self._line.wait_for(turn)
            with ranks.timed():
                return rest()
        except BaseException as error:
            ranks.give_up(error)
            raise
        finally:
            self._line.leave(turn)

    def _cache_bytes(self, num_pages: int) -> int:
        shards = [self.layout.shard(rank).narrowed() for rank in range(self.layout.world_size)]
        numbers = sum(c.num_hidden_layers * c.num_key_value_heads * c.head_dim for c in shards)
        return 2 * num_pages * PAGE_SIZE * numbers * self._dtype.itemsize


def measured_chip(layout: Layout, seconds: float, joining: float, weights: int, on_cpu: bool) -> Chip:
    """The speed of the devices, from one pass.

    Args:
        seconds: of the first stage's part of a pass over one row.
        joining: seconds of one all-reduce of a row's hidden states.
        weights: bytes of a rank of the first stage.
    """
    size = layout.tensor_size
    sums = ALL_REDUCES_PER_LAYER * len(layout.stages[0]) * joining
    bandwidth = weights / max(seconds - sums, _LEAST_READING * seconds)
    balance = CPU_BALANCE if on_cpu else GPU_BALANCE
    return Chip(bandwidth, balance * bandwidth, joining / math.log2(size) if size > 1 else 0.0)


class LayerSubset:
    """A view of a parallel model that runs only some of its layers; caches are those of the whole model."""

    is_row_invariant = False

    def __init__(self, model: ParallelModel, layers: tuple[int, ...]) -> None:
        self._model, self._layers = model, layers

    @property
    def config(self) -> ModelConfig:
        """See `CausalLM.config`; the whole model's."""
        return self._model.config

    def new_cache(self, num_pages: int) -> ParallelCache:
        """As the whole model's."""
        return self._model.new_cache(num_pages)

    def forward(self, rows: Rows, cache: KVCache, taps: tuple[int, ...] = ()) -> ForwardOutput:
        """As `ParallelModel.forward`."""
        return self._model.run_layers(self._layers, rows, cache, taps)
