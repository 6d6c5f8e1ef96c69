"""Layers with a state in place of attention: short convolutions and gated delta nets, row by row.

The forms are those of `architecture/recurrence.py`; which state a row begins with is decided by `models/state_book.py`.
Everything between the linear layers is computed in float32. Clear rather than fast.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.recurrence import Recurrence
from paceline.models.state_book import AGAIN, LOAD, REPEAT, ROW, SAVE

_EPSILON = 1e-6
"""Of the norm of a gated delta net's queries and keys, in transformers a constant too."""
Cell = Callable[[Tensor, Tensor], Tensor]
"""Takes a state [state_size], which it changes, and a row's inputs; returns the row's output."""


class _Taps(nn.Module):
    """The weights [channels, kernel] of a causal convolution of each channel, the row's own last."""

    def __init__(self, recurrence: Recurrence) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(recurrence.channels, recurrence.kernel))

    def forward(self, state: Tensor, row: Tensor) -> Tensor:
        """[channels] after the row [channels]; the beginning of `state` has the rows before it, and takes it in."""
        channels, kernel = self.weight.shape
        before = state[: (kernel - 1) * channels].view(kernel - 1, channels)
        window = torch.cat([before, row[None]])
        before.copy_(window[1:])
        return (window * self.weight.float().T).sum(0)


class ShortConvolution(nn.Module):
    """LFM2's layer: with B, C, u projected from x, conv_out(C conv(B u))."""

    def __init__(self, config: ModelConfig, recurrence: Recurrence) -> None:
        super().__init__()
        hidden, channels, self.sizes = config.hidden_size, recurrence.channels, recurrence
        self.conv_in = nn.Linear(hidden, 3 * channels, bias=False)
        self.conv_taps = _Taps(recurrence)
        self.conv_out = nn.Linear(channels, hidden, bias=False)

    def forward(self, x: Tensor, layer: int, step: Any) -> Tensor:
        before, after, inputs = self.conv_in(x).chunk(3, dim=-1)
        mixed = run_steps(step, layer, (before * inputs).float(), self.conv_taps)
        return self.conv_out(after * mixed.to(x.dtype))


class GatedDeltaNet(nn.Module):
    """The layer of Qwen3.5; V value heads, K key heads of sizes v and k."""

    def __init__(self, config: ModelConfig, recurrence: Recurrence) -> None:
        super().__init__()
        hidden, heads, self.sizes = config.hidden_size, recurrence.value_heads, recurrence
        width = heads * recurrence.value_dim
        keys = recurrence.key_heads * recurrence.key_dim
        self.delta_query, self.delta_key = (nn.Linear(hidden, keys, bias=False) for _ in range(2))
        self.delta_value = nn.Linear(hidden, width, bias=False)
        self.z = nn.Linear(hidden, width, bias=False)
        self.beta = nn.Linear(hidden, heads, bias=False)
        self.step = nn.Linear(hidden, heads, bias=False)
        self.taps = _Taps(recurrence)
        self.step_shift = _Shift(heads)
        self.decay = _Vector(heads)
        self.norm = _Vector(recurrence.value_dim)
        self.eps = config.norm_eps
        self.delta_out = nn.Linear(width, hidden, bias=False)
        self._key_heads = [recurrence.key_head_of(head) for head in range(heads)]

    def forward(self, x: Tensor, layer: int, step: Any) -> Tensor:
        parts = self.delta_query, self.delta_key, self.delta_value, self.beta, self.step
        inputs = torch.cat([part(x) for part in parts], dim=-1).float()
        mixed = run_steps(step, layer, inputs, self._cell).view(len(x), self.sizes.value_heads, -1)
        scaled = mixed * torch.rsqrt(mixed.pow(2).mean(-1, keepdim=True) + self.eps) * self.norm.weight.float()
        gated = scaled * functional.silu(self.z(x).float().view(scaled.shape))
        return self.delta_out(gated.flatten(1).to(x.dtype))

    def _cell(self, state: Tensor, row: Tensor) -> Tensor:
        sizes = self.sizes
        heads, keys = sizes.value_heads, sizes.key_heads * sizes.key_dim
        channels, beta, delta = row.split([sizes.channels, heads, heads])
        query, key, value = functional.silu(self.taps(state, channels)).split([keys, keys, heads * sizes.value_dim])
        query, key = (_unit(one.view(sizes.key_heads, -1))[self._key_heads] for one in (query, key))
        gain = (-self.decay.weight.float().exp() * functional.softplus(delta + self.step_shift.bias.float())).exp()
        memory = state[(sizes.kernel - 1) * sizes.channels :].view(heads, sizes.key_dim, sizes.value_dim)
        memory.mul_(gain[:, None, None])
        said = torch.einsum("hkv,hk->hv", memory, key)
        change = (value.view(heads, -1) - said) * torch.sigmoid(beta)[:, None]
        memory.add_(key[:, :, None] * change[:, None, :])
        return torch.einsum("hkv,hk->hv", memory, query * sizes.key_dim**-0.5).flatten()


class _Vector(nn.Module):
    """A vector of weights."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))


class _Shift(nn.Module):
    """A vector of biases."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(size))


def _unit(x: Tensor) -> Tensor:
    """Vectors over the last dimension, of length 1."""
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + _EPSILON)


def run_steps(step: Any, layer: int, inputs: Tensor, cell: Cell) -> Tensor:
    """[M, ...] float32 outputs of a layer's rows with `inputs` [M, n], after all `step.states`; `layer` counts the
    recurrent ones."""
    store, steps = step.cache.store, step.states.steps.tolist()
    states, kept = (torch.from_numpy(all_layers[:, layer]) for all_layers in (store.states, store.inputs))
    rows, outputs, state = inputs.cpu(), {}, torch.zeros(states.shape[1])
    for kind, first, second in steps:
        if kind == LOAD:
            state = torch.zeros_like(state) if first < 0 else states[first].clone()
        elif kind == REPEAT:
            cell(state, kept[first].to(inputs.device))
        elif kind == SAVE:
            states[first] = state
        else:
            assert kind in (ROW, AGAIN)
            outputs[first] = cell(state, rows[first])
            if kind == ROW and second >= 0:
                kept[second] = rows[first]
    return torch.stack([outputs[row] for row in range(len(inputs))]).to(inputs.device)
