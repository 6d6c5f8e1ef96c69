"""`HalfAutoregressiveNet` in torch, for `Falcon`.

Keys, values and LSTM states are stored per cache slot, so a draft can continue from any row: the last committed one, or
a node of a tree.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.models.base import PAGE_SIZE, KVCache
from paceline.models.heads.nets import BlockOfRows, NetOutput
from paceline.models.heads.record import HeadRecord
from paceline.models.heads.waves import waves
from paceline.models.torch_executor.cache import TorchKVCache, unwritten_zeros
from paceline.models.torch_executor.heads.falcon import LSTM_LAYERS, Falcon, LstmState


class FalconCache(TorchKVCache):
    """Keys and values, and outputs and cells of the LSTM, [2, layers, slots, hidden]."""

    def __init__(self, record: HeadRecord, num_pages: int, device: torch.device) -> None:
        layer = record.config.layer
        assert layer is not None
        super().__init__(layer, num_pages, device, torch.float32)
        shape = (2, LSTM_LAYERS, num_pages * PAGE_SIZE, layer.hidden_size)
        self.states = unwritten_zeros(shape, device, torch.float32)

    @property
    def num_bytes(self) -> int:
        """See `KVCache.num_bytes`."""
        return super().num_bytes + self.states.nbytes

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """See `KVCache.move`; LSTM states are moved, too."""
        super().move(sources, destinations)
        self.states[:, :, self._index(destinations)] = self.states[:, :, self._index(sources)]


class TorchHalfAutoregressiveNet:
    """See `HalfAutoregressiveNet`; for `Falcon`."""

    def __init__(self, record: HeadRecord, net: Falcon) -> None:
        self.record, self.net = record, net
        self._device = next(net.parameters()).device

    def new_cache(self, num_pages: int) -> FalconCache:
        """See `HalfAutoregressiveNet.new_cache`."""
        return FalconCache(self.record, num_pages, self._device)

    def project(self, taps: np.ndarray) -> np.ndarray:
        """See `HalfAutoregressiveNet.project`: the one hidden state, as it is."""
        return np.asarray(taps, np.float32)

    @torch.inference_mode()
    def extend(self, tokens: np.ndarray, hidden: np.ndarray, positions: np.ndarray, slots: np.ndarray,
               before: np.ndarray, cache: KVCache) -> None:  # fmt: skip
        """See `HalfAutoregressiveNet.extend`."""
        assert isinstance(cache, FalconCache)
        fed = torch.from_numpy(np.ascontiguousarray(hidden, np.float32)).to(self._device)
        entered = self.net.enter(self._index(tokens), fed)
        for rows in waves(slots.tolist(), before.tolist()):
            above = self._index(before[rows])
            states = cache.states[:, :, above.clamp(min=0)] * (above >= 0)[:, None]
            found = self.net.step(entered[self._index(rows)], LstmState(states[0], states[1]))
            cache.states[:, :, self._index(slots[rows])] = torch.stack(found)
        x, places = cache.states[0, -1, self._index(slots)], self._index(slots)
        cache.keys[0][places], cache.values[0][places] = self.net.layer.self_attn.keys_values(x, self._index(positions))

    @torch.inference_mode()
    def draft(self, blocks: Sequence[BlockOfRows], cache: KVCache) -> NetOutput:
        """See `HalfAutoregressiveNet.draft`."""
        assert isinstance(cache, FalconCache)
        layer = self.net.layer
        x = cache.states[0, -1, torch.cat([self._index(block.slots) for block in blocks])]
        positions = torch.cat([self._index(block.positions) for block in blocks])
        queries = layer.self_attn.queries(x, positions).split([len(block.slots) for block in blocks])
        mixed = [_mixed(query, cache, self._index(one.visible)) for query, one in zip(queries, blocks, strict=True)]
        states = layer.leave(x, torch.cat(mixed))
        logits = functional.linear(states, self.net.rows.float())
        return NetOutput(logits.cpu().numpy(), states.cpu().numpy())

    def _index(self, values: np.ndarray | Sequence[int]) -> Tensor:
        return torch.as_tensor(np.asarray(values), dtype=torch.long).to(self._device)


def _mixed(query: Tensor, cache: FalconCache, slots: Tensor) -> Tensor:
    """Output of attention [rows, heads * D], where every row attends to all of `slots`."""
    q, k, v = (one.transpose(0, 1)[None] for one in (query, cache.keys[0][slots], cache.values[0][slots]))
    return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)[0].transpose(0, 1).flatten(1)
