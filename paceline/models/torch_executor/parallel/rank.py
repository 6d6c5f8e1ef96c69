"""`Rank`: executes messages on one rank. All ranks handle the same messages; results are gathered on rank 0.

Forward passes run as a pipeline of micro-batches of consecutive rows, since a row attends only to rows before it and to
earlier passes; every stage processes the micro-batches in order. Not for starting processes (`launch.py`).
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.models.base import ForwardOutput, Rows
from paceline.models.files.checkpoint import Checkpoint
from paceline.models.torch_executor.cache import TorchKVCache
from paceline.models.torch_executor.model import Stage, last_taps
from paceline.models.torch_executor.parallel.links import Links
from paceline.models.torch_executor.parallel.messages import Command, Message, rows_of

_PER_ROW = ("token_ids", "positions", "slots", "segments", "natural_lengths", "branch_slots", "num_keys")


class Rank:
    """The shard of `links.rank`, its part of every cache, and the work on them.

    Args:
        checkpoint: the weights of the whole model, read tensor by tensor; only the shard is kept.
        links: to the other ranks.
        device, dtype: as in `Stage`.
    """

    def __init__(self, checkpoint: Checkpoint, links: Links, device: str, dtype: str) -> None:
        self._links, self._layout = links, links.layout
        self._stage = Stage(checkpoint, device, dtype, self._layout.shard(links.rank), links.total)
        self._index = self._layout.stage_of(links.rank)
        self._caches: dict[int, TorchKVCache] = {}

    def handle(self, message: Message) -> Any:
        """Execute `message`. Rank 0 returns the result, the others None."""
        return self.begin(message)()

    @torch.inference_mode()
    def begin(self, message: Message) -> Callable[[], Any]:
        """Execute this rank's own part of `message`; the function returned waits for other ranks and gives the result.

        Only a pass has anything left to wait for: rank 0 may begin the next pass before it gathers the results of this.
        """
        arrays = message.arrays
        if message.command is not Command.FORWARD:
            result = self._do(message.command, arrays)
            return lambda: result
        (cache, num_parts), layers, taps, *rows = arrays
        stage = self._stage.with_layers(layers.tolist())
        held = self._caches[int(cache)]
        return self._forward(stage, held, rows_of(rows), int(num_parts), tuple(taps.tolist()))

    def _do(self, command: Command, arrays: Sequence[np.ndarray]) -> Any:
        match command:
            case Command.NEW_CACHE:
                self._caches[int(arrays[0][0])] = self._stage.new_cache(int(arrays[0][1]))
                return self._collect(torch.zeros(1))
            case Command.DROP_CACHES:
                for number in arrays[0].tolist():
                    del self._caches[number]
            case Command.MOVE:
                self._caches[int(arrays[0][0])].move(arrays[1].tolist(), arrays[2].tolist())
            case Command.READ:
                return self._read(self._caches[int(arrays[0][0])], arrays[1].tolist())
            case Command.MEASURE:
                (cache, repeats), *rows = arrays
                return self._measure(rows_of(rows), self._caches[int(cache)], int(repeats))
            case Command.JOIN:
                return self._collect(torch.tensor([self._join_seconds(int(arrays[0][0]))], dtype=torch.float64))
        return None

    def _forward(
        self, stage: Stage, cache: TorchKVCache, rows: Rows, num_parts: int, taps: tuple[int, ...]
    ) -> Callable[[], Any]:
        shard, links = stage.shard, self._links
        embedded = stage.embed(rows) if shard.is_first else None
        pieces, tapped = [], []
        for begin, part in split_rows(rows, num_parts):
            size = len(part.token_ids)
            x = self._before(size) if embedded is None else embedded[begin : begin + size]
            x, seen = stage.run(x, part, cache, taps)
            tapped.append(seen)
            if shard.is_last:
                pieces.append(x)
            else:
                links.send(x, links.rank + self._layout.tensor_size)
        states = {i: torch.cat([seen[i] for seen in tapped]) for i in shard.layers if i in taps}
        logits = None
        if shard.is_last:
            x = torch.cat(pieces)
            normed, logits = stage.finish(x, rows.logit_rows)
            states |= last_taps(shard.config, taps, x, normed)
        if links.rank != 0:
            self._gather(rows, taps, states, logits)
            return partial(links.flush, links.take_sent())
        sent = links.take_sent()

        def rest() -> ForwardOutput | None:
            output = self._gather(rows, taps, states, logits)
            links.flush(sent)
            return output

        return rest

    def _before(self, size: int) -> Tensor:
        """Hidden states of `size` rows from the stage before."""
        shape = (size, self._stage.shard.config.hidden_size)
        return self._links.receive(shape, self._stage.dtype, self._links.rank - self._layout.tensor_size)

    def _gather(
        self, rows: Rows, taps: tuple[int, ...], states: dict[int, Tensor], logits: Tensor | None
    ) -> ForwardOutput | None:
        """Send the shares of logits and the tapped states to rank 0, which assembles them."""
        config, layout = self._stage.shard.config, self._layout
        shape = (len(rows.token_ids), config.hidden_size)
        found = {}
        for tap in taps:
            stage = next((s for s, layers in enumerate(layout.stages) if tap in layers), len(layout.stages) - 1)
            found[tap] = self._to_first(states.get(tap), shape, layout.ranks_of(stage)[0])
        shares = []
        for rank in layout.ranks_of(-1):
            width = layout.shard(rank).narrowed().vocab_size
            own = logits if rank == self._links.rank else None
            shares.append(self._to_first(own, (len(rows.logit_rows), width), rank))
        if self._links.rank != 0:
            return None
        return ForwardOutput(np.concatenate(shares, axis=1), found)

    def _to_first(
        self, tensor: Tensor | None, shape: Sequence[int], rank: int, dtype: torch.dtype = torch.float32
    ) -> np.ndarray | None:
        """On rank 0, return `tensor` of `rank` as `dtype`; on `rank`, send it; elsewhere do nothing."""
        own = self._links.rank
        if own == rank:
            assert tensor is not None
            tensor = tensor.to(self._stage.device, dtype)
            if own == 0:
                return tensor.cpu().numpy()
            self._links.send(tensor, 0)
        return self._links.receive(shape, dtype, rank).cpu().numpy() if own == 0 else None

    def _collect(self, tensor: Tensor) -> list[np.ndarray] | None:
        """On rank 0, every rank's `tensor`, which has the same shape everywhere; elsewhere None."""
        world = range(self._layout.world_size)
        found = [self._to_first(tensor, tensor.shape, rank, tensor.dtype) for rank in world]
        self._links.flush(self._links.take_sent())
        return [array for array in found if array is not None] if self._links.rank == 0 else None

    def _read(self, cache: TorchKVCache, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray] | None:
        """On rank 0 keys and values [layers, slots, kv_heads, head_dim] of the whole model."""
        config = self._stage.shard.config
        whole = np.empty((2, config.num_hidden_layers, len(slots), config.num_key_value_heads, config.head_dim), "f4")
        stored = torch.from_numpy(np.stack(cache.read(slots)))
        for rank in range(self._layout.world_size):
            shard = self._layout.shard(rank)
            target = whole[:, shard.layers.start : shard.layers.stop, :, shard.key_heads]
            part = self._to_first(stored, target.shape, rank)
            if part is not None:
                target[:] = part
        self._links.flush(self._links.take_sent())
        return (whole[0], whole[1]) if self._links.rank == 0 else None

    def _measure(self, rows: Rows, cache: TorchKVCache, repeats: int) -> list[np.ndarray] | None:
        """On rank 0 [seconds of a pass over `rows`, bytes of weights] of every rank; the stages take turns."""
        seconds = 0.0
        for stage in range(len(self._layout.stages)):
            if stage == self._index:
                times = [self._timed(rows, cache) for _ in range(repeats + 1)][1:]  # the first one warms up
                seconds = statistics.median(times)
            self._links.wait_for_all()
        return self._collect(torch.tensor([seconds, self._stage.num_bytes], dtype=torch.float64))

    def _join_seconds(self, repeats: int) -> float:
        """Median seconds of one all-reduce of a row's hidden states over the ranks of this stage."""
        x = torch.zeros(1, self._stage.shard.config.hidden_size, dtype=self._stage.dtype, device=self._stage.device)
        times = []
        for _ in range(repeats + 1):
            self._synchronize()
            started = time.perf_counter()
            self._links.total(x)
            self._synchronize()
            times.append(time.perf_counter() - started)
        return statistics.median(times[1:])

    def _timed(self, rows: Rows, cache: TorchKVCache) -> float:
        """Seconds of this stage's part of a pass, including its all-reduces, excluding waits for other stages."""
        shard, size = self._stage.shard, len(rows.token_ids)
        x = torch.ones(size, shard.config.hidden_size, dtype=self._stage.dtype, device=self._stage.device)
        self._synchronize()
        started = time.perf_counter()
        x, _ = self._stage.run(self._stage.embed(rows) if shard.is_first else x, rows, cache)
        if shard.is_last:
            self._stage.finish(x, rows.logit_rows)
        self._synchronize()
        return time.perf_counter() - started

    def _synchronize(self) -> None:
        if self._stage.device.type == "cuda":
            torch.cuda.synchronize(self._stage.device)


def split_rows(rows: Rows, num_parts: int) -> Iterator[tuple[int, Rows]]:
    """(first row, rows) of `num_parts` batches of consecutive rows, of sizes as equal as possible.

    Running them in order is equivalent to one pass: a row attends to earlier rows and earlier passes only.
    """
    size = len(rows.token_ids)
    for i in range(num_parts):
        begin, end = size * i // num_parts, size * (i + 1) // num_parts
        asked = rows.logit_rows[(rows.logit_rows >= begin) & (rows.logit_rows < end)] - begin
        own = {name: getattr(rows, name)[begin:end] for name in _PER_ROW if getattr(rows, name) is not None}
        yield begin, replace(rows, logit_rows=asked, **own)
