"""Draft heads at work in torch: the three shapes of `models/heads/nets.py` around the networks that are trained.

The reference for faster ones, and what runs where the target runs in torch. Attention reads pages.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.base import KVCache, Rows
from paceline.models.heads.nets import NetOutput
from paceline.models.heads.record import HeadRecord
from paceline.models.torch_executor.cache import SegmentView, TorchKVCache, segment_views
from paceline.models.torch_executor.heads.blockwise import Blockwise
from paceline.models.torch_executor.heads.dspark import DSpark
from paceline.models.torch_executor.heads.eagle import Eagle
from paceline.models.torch_executor.heads.eagle3 import Eagle3
from paceline.models.torch_executor.heads.falcon import Falcon
from paceline.models.torch_executor.heads.half_autoregressive import TorchHalfAutoregressiveNet
from paceline.models.torch_executor.heads.medusa import Medusa
from paceline.models.torch_executor.heads.mlp_speculator import MlpSpeculator

_CPU = torch.device("cpu")


class _PagedNet:
    """What nets with attention share: pages of keys and values in float32."""

    def __init__(self, record: HeadRecord, net: Any) -> None:
        self.record, self.net = record, net
        assert record.config.layer is not None
        self._layer = record.config.layer

    def new_cache(self, num_pages: int) -> TorchKVCache:
        """See `AutoregressiveNet.new_cache`."""
        return TorchKVCache(self._layer, num_pages, _CPU, torch.float32)

    def _layers(self, x: Tensor, residual: Tensor, rows: Rows, cache: TorchKVCache) -> Tensor:
        """[M, hidden] after all layers, from what the first one's attention reads and its residual."""
        positions, slots, views = _index(rows.positions), _index(rows.slots), segment_views(rows, _CPU)
        y = residual
        for number, layer in enumerate(self.net.layers):
            if number:
                x, residual = layer.enter(y)
            keys, values = cache.keys[number], cache.values[number]
            keys[slots], values[slots] = layer.self_attn.keys_values(x, positions)
            mixed = _attend(layer.self_attn.queries(x, positions), keys, values, views)
            y = layer.leave(residual, mixed)
        return y


class TorchAutoregressiveNet(_PagedNet):
    """See `AutoregressiveNet`; for `Eagle3` and `Eagle`."""

    @torch.inference_mode()
    def project(self, taps: np.ndarray) -> np.ndarray:
        """See `AutoregressiveNet.project`."""
        each = torch.from_numpy(np.ascontiguousarray(taps, np.float32)).view(
            len(taps), len(self.record.config.taps), -1
        )
        return self.net.project(each).numpy()

    @torch.inference_mode()
    def forward(self, rows: Rows, hidden: np.ndarray, cache: KVCache) -> NetOutput:
        """See `AutoregressiveNet.forward`."""
        assert isinstance(cache, TorchKVCache)
        fed_here = torch.from_numpy(np.ascontiguousarray(hidden, np.float32))
        x, residual = self.net.enter(_index(rows.token_ids), fed_here)
        read, fed = self.net.finish(self._layers(x, residual, rows, cache))
        logits = functional.linear(read[_index(rows.logit_rows)], self.net.rows.float())
        return NetOutput(logits.numpy(), fed.numpy())


class TorchBlockNet(_PagedNet):
    """See `BlockNet`; for `DSpark`."""

    @torch.inference_mode()
    def inject(self, taps: np.ndarray, positions: np.ndarray, slots: np.ndarray, cache: KVCache) -> None:
        """See `BlockNet.inject`."""
        assert isinstance(cache, TorchKVCache)
        each = torch.from_numpy(np.ascontiguousarray(taps, np.float32)).view(
            len(taps), len(self.record.config.taps), -1
        )
        context, places = self.net.context(each), _index(positions)
        for number, layer in enumerate(self.net.layers):
            keys, values = layer.self_attn.keys_values(context, places)
            cache.keys[number][_index(slots)], cache.values[number][_index(slots)] = keys, values

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache) -> NetOutput:
        """See `BlockNet.forward`."""
        assert isinstance(cache, TorchKVCache)
        x, residual = self.net.layers[0].enter(self.net.embed(_index(rows.token_ids)))
        states = self.net.norm(self._layers(x, residual, rows, cache))
        logits = functional.linear(states[_index(rows.logit_rows)], self.net.rows.float())
        return NetOutput(logits.numpy(), states.numpy())

    @torch.inference_mode()
    def bias(self, tokens: np.ndarray) -> np.ndarray:
        """See `BlockNet.bias`."""
        added = self.net.bias(_index(tokens))
        return np.zeros((len(tokens), len(self.net.rows)), np.float32) if added is None else added.numpy()

    @torch.inference_mode()
    def confidence(self, hidden: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """See `BlockNet.confidence`."""
        if not self.record.config.confidence:
            return np.ones(len(tokens), np.float32)
        states = torch.from_numpy(np.ascontiguousarray(hidden, np.float32))
        return torch.sigmoid(self.net.confidence(states, _index(tokens))).numpy()


class TorchStepNet:
    """See `StepNet`; for `MlpSpeculator`, and for heads whose state is the target's hidden state itself."""

    def __init__(self, record: HeadRecord, net: Any) -> None:
        self.record, self.net = record, net

    @torch.inference_mode()
    def begin(self, hidden: np.ndarray) -> np.ndarray:
        """See `StepNet.begin`; states are as wide as the widest of them, the rest zeros."""
        state = torch.from_numpy(np.ascontiguousarray(hidden, np.float32))
        return _widened(self.net.begin(state), self._width).numpy()

    @torch.inference_mode()
    def step(self, level: int, states: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `StepNet.step`."""
        fed = torch.from_numpy(np.ascontiguousarray(states, np.float32))
        state = self.net.step(level, fed[:, : self.net.width(level)], _index(tokens))
        logits = functional.linear(self.net.read(level, state).float(), self.net.rows_of(level).float())
        return logits.numpy(), _widened(state, self._width).numpy()

    @property
    def _width(self) -> int:
        return max(self.net.width(level) for level in range(self.record.config.num_steps + 1))


NETS: dict[str, tuple[type[nn.Module], type]] = {
    "eagle3": (Eagle3, TorchAutoregressiveNet), "eagle": (Eagle, TorchAutoregressiveNet),
    "dspark": (DSpark, TorchBlockNet), "dflash": (DSpark, TorchBlockNet),
    "mlp_speculator": (MlpSpeculator, TorchStepNet), "medusa": (Medusa, TorchStepNet),
    "blockwise": (Blockwise, TorchStepNet), "falcon": (Falcon, TorchHalfAutoregressiveNet),
}  # fmt: skip
"""Network and shape by family."""


def _index(values: np.ndarray) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.long)


def _widened(state: Tensor, width: int) -> Tensor:
    return functional.pad(state.float(), (0, width - state.shape[1]))


def _attend(query: Tensor, keys: Tensor, values: Tensor, views: list[SegmentView]) -> Tensor:
    """[M, heads * D] values mixed over the slots that each row sees."""
    mixed = torch.empty_like(query)
    for view in views:
        q, k, v = (t.transpose(0, 1)[None] for t in (query[view.rows], keys[view.slots], values[view.slots]))
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=view.masks[0], enable_gqa=True)
        mixed[view.rows] = found[0].transpose(0, 1)
    return mixed.flatten(1)
