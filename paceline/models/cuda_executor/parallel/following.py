"""`Follower`: a rank other than 0. It executes the commands of rank 0 on its shard, in the same order.

A pass launched ahead begins with results of the pass before it. Rank 0 alone knows what was drawn, and looks texts up,
so it sends these results to the other ranks, from device to device (`with_results_of_first`).
"""

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.models.base import Rows
from paceline.models.cuda_executor.graphs import on_device
from paceline.models.cuda_executor.laws.chains import unpacked
from paceline.models.cuda_executor.model import CudaModel
from paceline.models.cuda_executor.paged_rows import FIELDS
from paceline.models.cuda_executor.passes import Advance, CudaKVCache
from paceline.models.torch_executor.parallel.links import Links
from paceline.models.torch_executor.parallel.messages import Command, Message, rows_of
from paceline.models.torch_executor.shard import Shard


class Follower:
    """The shard of one rank, and its part of every cache.

    Args:
        model: the shard.
        links: to the other ranks.
    """

    def __init__(self, model: CudaModel, links: Links) -> None:
        self._model, self._links = model, links
        self._views: dict[tuple[int, ...], CudaModel] = {}
        self._caches: dict[int, CudaKVCache] = {}

    @torch.inference_mode()
    def handle(self, message: Message) -> None:
        """Execute `message`."""
        how, *arrays = message.arrays
        numbers = how.tolist()
        match message.command:
            case Command.NEW_CACHE:
                self._caches[numbers[0]] = self._model.new_cache(numbers[1])
            case Command.DROP_CACHES:
                for number in numbers:
                    self._caches.pop(number).graphs.clear()  # they refer to the cache
            case Command.JOIN:
                seconds_of_join(self._model, self._links, numbers[0])
            case Command.MOVE | Command.READ | Command.WRITE as command:
                self._change(command, self._caches[numbers[0]], arrays)
            case command:
                self._pass(command, self._caches[numbers[0]], numbers[1:], *arrays)

    def _pass(
        self, command: Command, cache: CudaKVCache, how: list[int], layers: np.ndarray, *arrays: np.ndarray
    ) -> None:  # fmt: skip
        """Run a pass over `layers`."""
        model = self._view(tuple(layers.tolist()))
        match command:
            case Command.FORWARD:
                taps, *rows = arrays
                is_foreseen, makes_rows = map(bool, how)
                begins = with_results_of_first(self._links, model.picks, makes_rows=makes_rows) if is_foreseen else None
                model.launch(rows_of(rows), cache, tuple(taps.tolist()), is_foreseen=is_foreseen, advance=begins)
            case Command.CHAIN:
                (num_tokens, count), (bits, *rows) = how, arrays
                draws = unpacked(bits.view(np.int64).reshape(count, -1)) if count else None
                model.draft_chains(rows_of(rows), cache, num_tokens, draws)
            case Command.WEIGH_PAGES:
                page_attention(model, rows_of(arrays), cache, self._links)

    def _change(self, command: Command, cache: CudaKVCache, arrays: Sequence[np.ndarray]) -> None:
        """Move, read or write slots."""
        slots, *others = arrays
        match command:
            case Command.MOVE:
                cache.move(slots.tolist(), others[0].tolist())
            case Command.READ:
                read_from_all(cache, slots.tolist(), self._links)
            case Command.WRITE:
                config = self._links.shard.config
                shape = -1, len(slots), config.num_key_value_heads, config.head_dim
                keys, values = (numbers.view(np.float32).reshape(shape) for numbers in others)
                write_share(cache, slots, keys, values, self._links.shard)

    def _view(self, layers: tuple[int, ...]) -> CudaModel:
        """The model that runs only `layers`."""
        if layers not in self._views:
            self._views[layers] = self._model.with_layers(layers)
        return self._views[layers]


def with_results_of_first(links: Links, picks: Tensor, *, makes_rows: bool, advance: Advance | None = None) -> Advance:
    """What a pass launched ahead begins with on every rank: rank 0's picks of the pass before, and rows made of them.

    Args:
        picks: where this rank keeps picks.
        makes_rows: whether the rows are made on rank 0's device, there by `advance`.
    """

    def run(packed: Tensor, num_rows: int) -> None:
        if advance is not None:
            advance(packed, num_rows)
        if makes_rows:
            links.spread(packed[: len(FIELDS) * num_rows])
        links.spread(picks)

    return run


def page_attention(model: CudaModel, rows: Rows, cache: CudaKVCache, links: Links) -> np.ndarray:
    """`CudaModel.page_attention` on every rank; on rank 0 that of all layers and heads."""
    own = CudaModel.page_attention(model, rows, cache)
    parts = [_on_first(own, own.shape, rank, model.device, links) for rank in range(links.layout.world_size)]
    return np.stack(parts).sum(axis=0) / links.layout.tensor_size


def read_from_all(cache: CudaKVCache, slots: Sequence[int], links: Links) -> tuple[np.ndarray, np.ndarray]:
    """`CudaKVCache.read` on every rank; on rank 0 the keys and values of all layers and key heads."""
    own, config = np.stack(CudaKVCache.read(cache, slots)), links.layout.config
    shape = config.num_hidden_layers, len(slots), config.num_key_value_heads, config.head_dim
    keys, values = whole = np.zeros((2, *shape), np.float32)
    for rank in range(links.layout.world_size):
        shard = links.layout.shard(rank)
        part = whole[:, shard.layers.start : shard.layers.stop, :, shard.key_heads]
        part[:] = _on_first(own, part.shape, rank, cache.device, links)
    return keys, values


def _on_first(own: np.ndarray, shape: tuple[int, ...], rank: int, device: torch.device, links: Links) -> np.ndarray:
    """On rank 0 the array of `rank`, of this `shape` there; zeros elsewhere.

    Args:
        own: this rank's, float32.
    """
    if links.rank == rank == 0:
        return own
    if links.rank == rank:
        links.hand(torch.from_numpy(own).to(device), 0)
    return links.receive(shape, torch.float32, rank).cpu().numpy() if links.rank == 0 else np.zeros(shape, np.float32)


def write_share(cache: CudaKVCache, slots: np.ndarray, keys: np.ndarray, values: np.ndarray, shard: Shard) -> None:
    """`CudaKVCache.write` of this rank's part of `keys` and `values`, which have all layers and key heads."""
    layers, heads = slice(shard.layers.start, shard.layers.stop), shard.key_heads
    CudaKVCache.write(cache, slots, keys[layers, :, heads], values[layers, :, heads])


@torch.inference_mode()
def seconds_of_join(model: CudaModel, links: Links, repeats: int) -> float:
    """Seconds until the ranks have each other's sums of a row of hidden states, within a pass."""
    own = torch.zeros(1, 1, model.config.hidden_size, device=model.device)

    def joined() -> tuple[Tensor]:
        found = own
        for _ in range(repeats):
            found = links.gathered(found)[0]
        return (found,)

    with on_device(model.device):
        replay = model.passes.capture(joined)
        replay()[0].cpu()
        started = time.perf_counter()
        replay()[0].cpu()
        return (time.perf_counter() - started) / repeats
