"""Layers with a state in place of attention: short convolutions, gated delta nets and state spaces, row by row.

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
    """The weights [channels, kernel] of a causal convolution of each channel, the row's own last, and its bias."""

    def __init__(self, recurrence: Recurrence) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(recurrence.channels, recurrence.kernel))
        self.bias = nn.Parameter(torch.empty(recurrence.channels)) if recurrence.conv_bias else None

    def forward(self, state: Tensor, row: Tensor) -> Tensor:
        """[channels] after the row [channels]; the beginning of `state` has the rows before it, and takes it in."""
        channels, kernel = self.weight.shape
        before = state[: (kernel - 1) * channels].view(kernel - 1, channels)
        window = torch.cat([before, row[None]])
        before.copy_(window[1:])
        summed = (window * self.weight.float().T).sum(0)
        return summed if self.bias is None else summed + self.bias.float()


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


class MatrixStates(nn.Module):
    """A layer with a matrix for each of V value heads of size v, which share K key heads of size k.

    Args:
        norm: numbers of the norm after the matrices.
    """

    def __init__(self, config: ModelConfig, recurrence: Recurrence, norm: int) -> None:
        super().__init__()
        hidden, heads, self.sizes = config.hidden_size, recurrence.value_heads, recurrence
        width, keys = recurrence.width, recurrence.key_heads * recurrence.key_dim
        self.state_query, self.state_key = (nn.Linear(hidden, keys, bias=False) for _ in range(2))
        self.state_value = nn.Linear(hidden, width, bias=False)
        self.z = nn.Linear(hidden, width, bias=False)
        self.step = nn.Linear(hidden, heads, bias=False)
        self.taps = _Taps(recurrence)
        self.step_shift = _Shift(heads)
        self.decay = _Vector(heads)
        self.norm = _Vector(norm)
        self.eps = config.norm_eps
        self.state_out = nn.Linear(width, hidden, bias=False)
        self._key_heads = [recurrence.key_head_of(head) for head in range(heads)]

    @property
    def inputs(self) -> list[nn.Linear]:
        """The layers that project what states depend on, in the order of `Recurrence.inputs`."""
        raise NotImplementedError

    def forward(self, x: Tensor, layer: int, step: Any) -> Tensor:
        inputs = torch.cat([part(x) for part in self.inputs], dim=-1).float()
        mixed = run_steps(step, layer, inputs, self._cell)
        return self.state_out(self.leave(mixed, self.z(x).float()).to(x.dtype))

    def leave(self, mixed: Tensor, z: Tensor) -> Tensor:
        """[M, width] float32: what the matrices give, gated by z [M, width] and normed."""
        raise NotImplementedError

    def _cell(self, state: Tensor, row: Tensor) -> Tensor:
        """See `Cell`."""
        raise NotImplementedError

    def _step(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """([V] step, [V] factor on the matrix) of a row."""
        step = functional.softplus(row[-self.sizes.value_heads :] + self.step_shift.bias.float())
        return step, (-self.decay.weight.float().exp() * step).exp()

    def _memory(self, state: Tensor) -> Tensor:
        """The matrices [V, k, v] of a state."""
        sizes = self.sizes
        shape = sizes.value_heads, sizes.key_dim, sizes.value_dim
        return state[(sizes.kernel - 1) * sizes.channels :].view(shape)


class GatedDeltaNet(MatrixStates):
    """The layer of Qwen3.5, whose states forget what a key stood for before."""

    def __init__(self, config: ModelConfig, recurrence: Recurrence) -> None:
        super().__init__(config, recurrence, recurrence.value_dim)
        self.beta = nn.Linear(config.hidden_size, recurrence.value_heads, bias=False)

    @property
    def inputs(self) -> list[nn.Linear]:
        """See `MatrixStates.inputs`."""
        return [self.state_query, self.state_key, self.state_value, self.beta, self.step]

    def leave(self, mixed: Tensor, z: Tensor) -> Tensor:
        """See `MatrixStates.leave`: each head is normed, then gated."""
        mixed = mixed.view(len(mixed), self.sizes.value_heads, -1)
        scaled = mixed * torch.rsqrt(mixed.pow(2).mean(-1, keepdim=True) + self.eps) * self.norm.weight.float()
        return scaled.flatten(1) * functional.silu(z)

    def _cell(self, state: Tensor, row: Tensor) -> Tensor:
        sizes = self.sizes
        heads, keys = sizes.value_heads, sizes.key_heads * sizes.key_dim
        channels, beta, _ = row.split([sizes.channels, heads, heads])
        query, key, value = functional.silu(self.taps(state, channels)).split([keys, keys, sizes.width])
        query, key = (_unit(one.view(sizes.key_heads, -1))[self._key_heads] for one in (query, key))
        memory = self._memory(state)
        memory.mul_(self._step(row)[1][:, None, None])
        said = torch.einsum("hkv,hk->hv", memory, key)
        change = (value.view(heads, -1) - said) * torch.sigmoid(beta)[:, None]
        memory.add_(key[:, :, None] * change[:, None, :])
        return torch.einsum("hkv,hk->hv", memory, query * sizes.key_dim**-0.5).flatten()


class StateSpace(MatrixStates):
    """The layer of Mamba-2."""

    def __init__(self, config: ModelConfig, recurrence: Recurrence) -> None:
        super().__init__(config, recurrence, recurrence.width)
        self.skip = _Vector(recurrence.value_heads)

    @property
    def inputs(self) -> list[nn.Linear]:
        """See `MatrixStates.inputs`."""
        return [self.state_value, self.state_key, self.state_query, self.step]

    def leave(self, mixed: Tensor, z: Tensor) -> Tensor:
        """See `MatrixStates.leave`: all heads are gated, then those that share a key are normed together."""
        groups = (mixed * functional.silu(z)).view(len(mixed), self.sizes.key_heads, -1)
        scaled = groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + self.eps)
        return scaled.flatten(1) * self.norm.weight.float()

    def _cell(self, state: Tensor, row: Tensor) -> Tensor:
        sizes, keys = self.sizes, self.sizes.key_heads * self.sizes.key_dim
        convolved = functional.silu(self.taps(state, row[: sizes.channels]))
        value, key, query = convolved.split([sizes.width, keys, keys])
        query, key = (one.view(sizes.key_heads, -1)[self._key_heads] for one in (query, key))
        value, (step, gain), memory = value.view(sizes.value_heads, -1), self._step(row), self._memory(state)
        memory.mul_(gain[:, None, None])
        memory.add_(key[:, :, None] * (step[:, None] * value)[:, None, :])
        return (torch.einsum("hkv,hk->hv", memory, query) + self.skip.weight.float()[:, None] * value).flatten()


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
