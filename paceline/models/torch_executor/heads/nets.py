"""The interfaces of `models/heads/nets.py` in torch, for the networks that are trained.

They are the reference for faster executors, and run on the device of a target that runs in torch. Outputs are NumPy
arrays; attention reads paged keys and values.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.base import KVCache, Rows
from paceline.models.chains import ChainDraft
from paceline.models.heads.mask_rows import draft_masks
from paceline.models.heads.nets import NetOutput
from paceline.models.heads.record import HeadRecord
from paceline.models.states import States
from paceline.models.torch_executor.cache import SegmentView, TorchKVCache, segment_views
from paceline.models.torch_executor.device_states import tensor_of
from paceline.models.torch_executor.heads.blockwise import Blockwise
from paceline.models.torch_executor.heads.dspark import DSpark
from paceline.models.torch_executor.heads.eagle import Eagle
from paceline.models.torch_executor.heads.eagle3 import Eagle3
from paceline.models.torch_executor.heads.falcon import Falcon
from paceline.models.torch_executor.heads.half_autoregressive import TorchHalfAutoregressiveNet
from paceline.models.torch_executor.heads.medusa import Medusa
from paceline.models.torch_executor.heads.mlp_speculator import MlpSpeculator
from paceline.models.torch_executor.heads.p_eagle import PEagle

Mixes = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention: (queries [M, heads, D], keys and values [slots, key heads, D] of a layer) to [M, heads * D]."""


class OnDevice:
    """A net whose inputs are NumPy arrays or `DeviceStates`, and whose outputs are NumPy arrays."""

    net: Any

    @cached_property
    def device(self) -> torch.device:
        """The device of its weights."""
        return next(self.net.parameters()).device

    def index(self, values: np.ndarray) -> Tensor:
        """`values` [n] as int64 on the device."""
        return torch.as_tensor(np.asarray(values), dtype=torch.long).to(self.device)

    def floats(self, values: States) -> Tensor:
        """`values` [n, ..] as float32 on the device."""
        return tensor_of(values, self.device).float()


def fetched(tensor: Tensor) -> np.ndarray:
    """`tensor` as a NumPy array."""
    return tensor.cpu().numpy()


def scored(read: Tensor, rows: Tensor) -> Tensor:
    """Logits [n, rows] float32 of states [n, hidden] and the rows of a head."""
    return functional.linear(read.to(rows.dtype), rows).float()


class PagedNet(OnDevice):
    """Base of nets with attention, with a paged KV cache."""

    def __init__(self, record: HeadRecord, net: Any) -> None:
        self.record, self.net = record, net
        assert record.config.layer is not None
        self.layer = record.config.layer

    def new_cache(self, num_pages: int) -> TorchKVCache:
        """See `AutoregressiveNet.new_cache`."""
        return TorchKVCache(self.layer, num_pages, self.device, torch.float32)

    def through(
        self, x: Tensor, residual: Tensor, positions: Tensor, slots: Tensor, mixes: Mixes, cache: TorchKVCache
    ) -> Tensor:
        """Output of all layers [M, hidden]; `x` and `residual` are the first layer's attention input and residual."""
        y = residual
        for number, layer in enumerate(self.net.layers):
            if number:
                x, residual = layer.enter(y)
            keys, values = cache.keys[number], cache.values[number]
            self._store(layer, x, positions, slots, keys, values)
            y = layer.leave(residual, mixes(layer.self_attn.queries(x, positions), keys, values))
        return y

    def _each(self, taps: States) -> Tensor:
        """`taps` [n, taps * hidden] as a tensor [n, taps, hidden]."""
        return self.floats(taps).view(len(taps), len(self.record.config.taps), -1)

    def _layers(self, x: Tensor, residual: Tensor, rows: Rows, cache: TorchKVCache) -> Tensor:
        """As `through`, for a batch `rows` on the host."""
        mixes = partial(_attend, views=segment_views(rows, self.device))
        return self.through(x, residual, self.index(rows.positions), self.index(rows.slots), mixes, cache)

    @staticmethod
    def _store(layer: Any, x: Tensor, positions: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        key, value = layer.self_attn.keys_values(x, positions)
        keys[slots], values[slots] = key.to(keys.dtype), value.to(values.dtype)


class TorchAutoregressiveNet(PagedNet):
    """See `AutoregressiveNet`; for `Eagle3` and `Eagle`."""

    @torch.inference_mode()
    def project(self, taps: States) -> States:
        """See `AutoregressiveNet.project`."""
        return fetched(self.net.project(self._each(taps)))

    @torch.inference_mode()
    def forward(self, rows: Rows, hidden: States, cache: KVCache) -> NetOutput:
        """See `AutoregressiveNet.forward`."""
        return self._output(rows, self.index(rows.token_ids), self.floats(hidden), cache)

    def _output(self, rows: Rows, tokens: Tensor, hidden: Tensor, cache: KVCache) -> NetOutput:
        """A pass over `rows` with `tokens` [M] and input states `hidden` [M, hidden]."""
        assert isinstance(cache, TorchKVCache)
        x, residual = self.net.enter(tokens, hidden)
        read, fed = self.net.finish(self._layers(x, residual, rows, cache))
        return NetOutput(fetched(scored(read[self.index(rows.logit_rows)], self.net.rows)), fetched(fed))


class TorchParallelEagle(TorchAutoregressiveNet):
    """See `NumbaParallelEagle`; for `PEagle`."""

    draws_chains = verifies_early = False

    def __init__(self, record: HeadRecord, net: PEagle) -> None:
        super().__init__(record, net)
        with torch.inference_mode():
            self._mask_state = net.mask_state()
        self._handed_on = fetched(self._mask_state)

    @torch.inference_mode()
    def forward(self, rows: Rows, hidden: States, cache: KVCache) -> NetOutput:
        """See `AutoregressiveNet.forward`; rows whose input is the mask state are masks, whatever their token."""
        fed = self.floats(hidden)
        masked = (fed == self._mask_state).all(dim=1)
        tokens = self.index(rows.token_ids).masked_fill(masked, self.net.mask_token)
        logits, _ = self._output(rows, tokens, fed, cache)
        return NetOutput(logits, np.tile(self._handed_on, (len(hidden), 1)))

    def draft_chains(self, rows: Rows, hidden: States, cache: KVCache, num_tokens: int) -> ChainDraft:
        """See `draft_masks`."""
        fed = np.asarray(hidden)
        return draft_masks(self.forward, self.record.draft_ids, self._handed_on, rows, fed, cache, num_tokens)


class TorchBlockNet(PagedNet):
    """See `BlockNet`; for `DSpark`."""

    @torch.inference_mode()
    def inject(self, taps: States, positions: np.ndarray, slots: np.ndarray, cache: KVCache) -> None:
        """See `BlockNet.inject`."""
        assert isinstance(cache, TorchKVCache)
        context, places, index = self.net.context(self._each(taps)), self.index(positions), self.index(slots)
        for number, layer in enumerate(self.net.layers):
            self._store(layer, context, places, index, cache.keys[number], cache.values[number])

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache) -> NetOutput:
        """See `BlockNet.forward`."""
        assert isinstance(cache, TorchKVCache)
        x, residual = self.net.layers[0].enter(self.net.embed(self.index(rows.token_ids)))
        states = self.net.norm(self._layers(x, residual, rows, cache))
        return NetOutput(fetched(scored(states[self.index(rows.logit_rows)], self.net.rows)), fetched(states))

    @torch.inference_mode()
    def bias(self, tokens: np.ndarray) -> np.ndarray:
        """See `BlockNet.bias`."""
        added = self.net.bias(self.index(tokens))
        return np.zeros((len(tokens), len(self.net.rows)), np.float32) if added is None else fetched(added.float())

    @torch.inference_mode()
    def confidence(self, hidden: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """See `BlockNet.confidence`."""
        if not self.record.config.confidence:
            return np.ones(len(tokens), np.float32)
        return fetched(torch.sigmoid(self.net.confidence(self.floats(hidden), self.index(tokens)).float()))


class TorchStepNet(OnDevice):
    """See `StepNet`; for `MlpSpeculator`, and for heads whose state is the target's hidden state itself."""

    def __init__(self, record: HeadRecord, net: Any) -> None:
        self.record, self.net = record, net

    @torch.inference_mode()
    def begin(self, hidden: States) -> States:
        """See `StepNet.begin`; states are padded with zeros to the widest level."""
        return fetched(self.begun(hidden))

    def begun(self, hidden: States) -> Tensor:
        """As `begin`, on the device."""
        return _widened(self.net.begin(self.floats(hidden)), self._width)

    @torch.inference_mode()
    def step(self, level: int, states: States, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `StepNet.step`."""
        logits, state = self.below(level, self.floats(states), self.index(tokens))
        return fetched(logits), fetched(state)

    def below(self, level: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """As `step`, for tensors."""
        state = self.net.step(level, states[:, : self.net.width(level)], tokens)
        logits = scored(self.net.read(level, state).float(), self.net.rows_of(level))
        return logits, _widened(state, self._width)

    @property
    def _width(self) -> int:
        return max(self.net.width(level) for level in range(self.record.config.num_steps + 1))


NETS: dict[str, tuple[type[nn.Module], type]] = {
    "eagle3": (Eagle3, TorchAutoregressiveNet), "eagle": (Eagle, TorchAutoregressiveNet),
    "p_eagle": (PEagle, TorchParallelEagle),
    "dspark": (DSpark, TorchBlockNet), "dflash": (DSpark, TorchBlockNet),
    "mlp_speculator": (MlpSpeculator, TorchStepNet), "medusa": (Medusa, TorchStepNet),
    "blockwise": (Blockwise, TorchStepNet), "falcon": (Falcon, TorchHalfAutoregressiveNet),
}  # fmt: skip
"""Network and its interface by family."""


def _widened(state: Tensor, width: int) -> Tensor:
    return functional.pad(state.float(), (0, width - state.shape[1]))


def _attend(query: Tensor, keys: Tensor, values: Tensor, views: list[SegmentView]) -> Tensor:
    """Output of attention [M, heads * D] over the slots that each row attends to."""
    mixed = torch.empty_like(query)
    for view in views:
        q, k, v = (t.transpose(0, 1)[None] for t in (query[view.rows], keys[view.slots], values[view.slots]))
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=view.masks[0], enable_gqa=True)
        mixed[view.rows] = found[0].transpose(0, 1)
    return mixed.flatten(1)
