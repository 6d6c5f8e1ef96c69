"""`LeadingModel`: rank 0 of a model over several GPUs, with which the engine deals.

It knows requests, drafts and verdicts, draws, and launches passes ahead as a `CudaModel` does. Everything that runs on
the device or changes a cache is told to the other ranks, which execute the same (`following.py`).
"""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet, finalize

import numpy as np

from paceline.errors import InvalidParameter, WorkerDied
from paceline.models.architecture.config import ModelConfig
from paceline.models.base import DrawnOutput, ForwardOutput, KVCache, Rows
from paceline.models.chains import ChainDraft, Draws
from paceline.models.cuda_executor.graphs import wait_for
from paceline.models.cuda_executor.laws.chains import packed
from paceline.models.cuda_executor.model import CudaModel
from paceline.models.cuda_executor.parallel.following import (
    page_attention,
    read_from_all,
    seconds_of_join,
    with_results_of_first,
    write_share,
)
from paceline.models.cuda_executor.passes import Advance, CudaKVCache, Launched
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor.model import check_rows
from paceline.models.torch_executor.parallel.messages import Command, Message, arrays_of, integers
from paceline.models.torch_executor.parallel.model import measured_chip
from paceline.models.torch_executor.parallel.ranks import Ranks
from paceline.sampling.answered import Question
from paceline.theory.distributed_draft import Chip


class LeadingCache(CudaKVCache):
    """Rank 0's part of a cache, and the handle of all parts.

    Args:
        number: names the cache to the other ranks.
        own: as of `CudaKVCache`.
    """

    def __init__(self, number: int, ranks: Ranks, *own: Any) -> None:
        super().__init__(*own)
        self.number, self._ranks = number, ranks

    @property
    def num_bytes(self) -> int:
        """Bytes on all ranks; key heads that several ranks hold count several times."""
        layout = self._ranks.layout
        return super().num_bytes * layout.tensor_size * layout.config.num_hidden_layers // len(layout.stages[0])

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """As `KVCache.move`, on every rank."""
        slots = integers(*sources), integers(*destinations)
        with self._ranks.telling(Command.MOVE, integers(self.number), *slots):
            super().move(sources, destinations)

    def read(self, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """As `KVCache.read`: all layers and key heads, gathered from the ranks."""
        told = integers(self.number), integers(*slots)
        with self._ranks.checked(), self._ranks.telling(Command.READ, *told) as links:
            return read_from_all(self, slots, links)

    def write(self, slots: Sequence[int] | np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """See `TakesKeys.write`; every rank keeps those of its layers and key heads."""
        at = np.asarray(slots, np.int32)
        numbers = [np.ascontiguousarray(given, np.float32).view(np.int32).ravel() for given in (keys, values)]
        with self._ranks.telling(Command.WRITE, integers(self.number), at, *numbers) as links:
            write_share(self, at, keys, values, links.shard)


class LeadingModel(CudaModel):
    """See `CudaModel`; `launch_model` makes one.

    Attributes:
        ranks: all ranks.
    """

    ranks: Ranks

    def __init__(self, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self._caches: WeakSet[LeadingCache] = WeakSet()
        finalize(self, _drop_graphs, self._caches)  # also at the end of the program

    def handle(self, message: Message) -> None:
        """See `HandlesMessages`. Rank 0 is told only that a cache is gone, and its own part went with the handle."""

    @property
    def description(self) -> str:
        """As `CudaModel.description`, and the number of ranks."""
        stages = len(self.ranks.layout.stages)
        return f"{super().description}, {self.tensor_parallel_size}{f' x {stages}' if stages > 1 else ''} ranks"

    def new_cache(self, num_pages: int) -> LeadingCache:
        """An empty cache of `num_pages` pages, of which every rank holds its part."""
        number = self.ranks.number_of_cache()
        with self.ranks.telling(Command.NEW_CACHE, integers(number, num_pages)):
            cache = LeadingCache(number, self.ranks, *self._form_of_cache(num_pages))
        self.ranks.drop_with(cache, number)
        self._caches.add(cache)
        return cache

    def launch(
        self, rows: Rows, cache: KVCache, taps: tuple[int, ...] = (), *, is_foreseen: bool = False,
        advance: Advance | None = None,
    ) -> Launched:  # fmt: skip
        """As `CudaModel.launch`, on every rank."""
        own = self._own(cache)
        if not is_foreseen:
            check_rows(self.config, rows, taps)
        how = integers(own.number, is_foreseen, advance is not None)
        with self.ranks.telling(Command.FORWARD, how, self._layers, integers(*taps), *arrays_of(rows)) as links:
            begins = with_results_of_first(links, self.picks, makes_rows=advance is not None, advance=advance)
            return super().launch(rows, own, taps, is_foreseen=is_foreseen, advance=begins if is_foreseen else None)

    def forward(self, rows: Rows, cache: KVCache, taps: tuple[int, ...] = ()) -> ForwardOutput:
        """As `CudaModel.forward`. Raises WorkerDied, here and below, when a rank is gone."""
        with self.ranks.checked():
            return super().forward(rows, cache, taps)

    def begin_drawn(
        self, rows: Rows, cache: KVCache, taps: tuple[int, ...], questions: Sequence[Question | None]
    ) -> Callable[[], DrawnOutput]:
        """As `CudaModel.begin_drawn`."""
        with self.ranks.checked():
            finish = super().begin_drawn(rows, cache, taps, questions)

        def finish_checked() -> DrawnOutput:
            with self.ranks.checked():
                return finish()

        return finish_checked

    def draft_chains(self, rows: Rows, cache: KVCache, num_tokens: int, draws: Draws | None = None) -> ChainDraft:
        """As `CudaModel.draft_chains`; every rank draws, from the same logits."""
        own = self._own(cache)
        check_rows(self.config, rows, ())
        bits = packed(draws) if draws else np.zeros(0, np.int64)
        told = integers(own.number, num_tokens, len(bits)), self._layers, bits.ravel().view(np.int32), *arrays_of(rows)
        with self.ranks.checked(), self.ranks.telling(Command.CHAIN, *told):
            return super().draft_chains(rows, own, num_tokens, draws)

    def page_attention(self, rows: Rows, cache: KVCache) -> np.ndarray:
        """See `WeighsPages`."""
        own = self._own(cache)
        check_rows(self.config, rows, ())
        told = integers(own.number), self._layers, *arrays_of(rows)
        with self.ranks.checked(), self.ranks.telling(Command.WEIGH_PAGES, *told) as links:
            return page_attention(self, rows, own, links)

    @property
    def tensor_parallel_size(self) -> int:
        """See `RunsOnRanks`."""
        return self.ranks.layout.tensor_size

    @property
    def largest_cache_share(self) -> float:
        """See `RunsOnRanks`."""
        return self.ranks.layout.largest_cache_share

    @property
    def least_free_bytes(self) -> int | None:
        """See `RunsOnRanks`."""
        return self.ranks.least_free_bytes

    def can_share(self, config: ModelConfig) -> bool:
        """See `RunsOnRanks`."""
        return self.ranks.layout.can_share(config)

    def chip(self, repeats: int = 20) -> Chip:
        """See `RunsOnRanks`; each layer of a pass over one row is taken to need the same time."""
        layout = self.ranks.layout
        with self.ranks.telling(Command.JOIN, integers(repeats)) as links:
            joining = seconds_of_join(self, links, repeats)
        rows, cache, times = build_rows([Part(range(1), 0, [0])]), self.new_cache(1), []
        for _ in range(repeats + 1):
            started = time.perf_counter()
            self.forward(rows, cache)
            times.append(time.perf_counter() - started)
        seconds = statistics.median(times[1:]) * len(layout.stages[0]) / layout.config.num_hidden_layers
        return measured_chip(layout, seconds, joining, self.num_bytes, self.device.type == "cpu")

    def close(self) -> None:
        """End the other ranks. May be called again; afterwards the model cannot be used."""

        def tell_to_close() -> None:
            with self.ranks.telling(Command.CLOSE):
                pass

        with suppress(WorkerDied, RuntimeError):
            self.ranks.check()
            with self.ranks.timed():
                wait_for(self.device)  # a pass launched ahead needs the other ranks until it has ended
        _drop_graphs(self._caches)
        self.ranks.close(tell_to_close)

    def __enter__(self) -> "LeadingModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _layers(self) -> np.ndarray:
        """Numbers of the layers that this view runs."""
        return integers(*self.layers)

    def _own(self, cache: KVCache) -> LeadingCache:
        if not isinstance(cache, LeadingCache):
            raise InvalidParameter("cache", f"is a {type(cache).__name__}", "make it with this model's new_cache")
        return cache


def _drop_graphs(caches: Iterable[LeadingCache]) -> None:
    """Before the groups of ranks end: an NCCL communicator waits until no graph holds collectives of it."""
    for cache in list(caches):
        cache.graphs.clear()
