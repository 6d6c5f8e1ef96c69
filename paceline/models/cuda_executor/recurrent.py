"""Models with recurrent layers on a GPU: their cache, whose states are on the device, and their layers.

Which state a row begins with is decided on the host, for each pass (`models/state_book.py`); the steps are copied to a
static tensor before the pass, so that its graph need not change. Not for the kernels (`kernels/recurrent.py`) or what
the layers are (`torch_executor/recurrent.py`).
"""

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.errors import UnsupportedModel
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.recurrence import Recurrence
from paceline.models.base import Rows
from paceline.models.cuda_executor.kernels.entries import rms_norm
from paceline.models.cuda_executor.kernels.recurrent import (
    MOST_TAPS,
    MatrixWeights,
    Program,
    convolved,
    matrix_states,
)
from paceline.models.cuda_executor.passes import CudaKVCache
from paceline.models.cuda_executor.staging import LARGEST, Pinned
from paceline.models.state_book import KeepsStates, StateSteps, StateStore
from paceline.models.torch_executor.layers import Pass
from paceline.models.torch_executor.recurrent import MatrixStates, ShortConvolution, StateSpace

_STEPS = 4 * LARGEST
"""Steps that there is room for at first. A pass has about one for each row, and some for each of its segments."""


def check_taps(recurrence: Recurrence) -> None:
    """Refuse convolutions that the kernels do not cover.

    Raises:
        UnsupportedModel: naming the remedy.
    """
    if recurrence.kernel > MOST_TAPS:
        problem = f"a convolution over {recurrence.kernel} inputs, where the GPU's kernels have up to {MOST_TAPS}"
        raise UnsupportedModel(f"kernel: {problem}; use executor='torch' or 'numba'")


class DeviceStateStore(StateStore):
    """States and inputs on a device; see `StateStore`."""

    def __init__(self, recurrence: Recurrence, device: torch.device) -> None:
        self._device = device
        super().__init__(recurrence)

    def _allocate(self) -> None:
        """Nothing until it is needed: caches are also made to learn the size of a page."""
        self.states, self.inputs = (self._zeros(0, self._layers, size) for size in self._sizes)

    def hold(self, num_states: int) -> None:
        """See `StateStore.hold`."""
        super().hold(num_states)
        super()._allocate()

    def plan(self, rows: Rows, whole: bool = True) -> StateSteps:
        """See `StateStore.plan`."""
        if not len(self.states):
            super()._allocate()
        return super().plan(rows, whole)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, device=self._device)

    def _joined(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts)


class RecurrentCache(KeepsStates, CudaKVCache):
    """A cache of a model with recurrent layers; see `HoldsStates`. Arguments as of `CudaKVCache`."""

    def __init__(
        self, config: ModelConfig, num_pages: int, device: torch.device, dtype: torch.dtype, kernels: bool = True
    ) -> None:
        super().__init__(config, num_pages, device, dtype, kernels)
        self.store = DeviceStateStore(cast(Recurrence, config.recurrence), device)
        self._make_room(LARGEST + 1, 3 * _STEPS)

    def _make_room(self, num_starts: int, size: int) -> None:
        """For so many numbers of `StateSteps.starts` and `.steps`."""
        self._starts, self._steps = Pinned(num_starts, self.device), Pinned(size, self.device)
        self.graphs.clear()  # they read the tensors before

    def hold(self, num_states: int) -> None:
        """See `HoldsStates.hold`."""
        super().hold(num_states)
        self.graphs.clear()

    def look_up(self, longest: int, shortest: int, earliest: bool, num_drafts: int) -> int:
        """See `LooksUp`: no pass is launched ahead, because its steps would not be known."""
        return 0

    def plan(self, rows: Rows, whole: bool) -> None:
        """Put the steps of a pass over `rows` in place; arguments and errors as of `StateStore.plan`."""
        before = self.store.inputs
        found = self.store.plan(rows, whole)
        if self.store.inputs is not before:
            self.graphs.clear()
        if len(found.starts) > self._starts.size or found.steps.size > self._steps.size:
            self._make_room(max(self._starts.size, 2 * len(found.starts)), max(self._steps.size, 2 * found.steps.size))
        self._send(found)

    def _send(self, found: StateSteps) -> None:
        starts, steps = self._starts.writable(), self._steps.writable()
        begun = np.unique(found.starts)  # without segments that have no rows
        starts[: len(begun)] = begun
        starts[len(begun) :] = begun[-1]
        steps[: found.steps.size] = found.steps.ravel()
        self._starts.send(len(starts))
        self._steps.send(found.steps.size)

    @property
    def program(self) -> Program:
        """The steps of the latest `plan`, in tensors whose place changes only when `graphs` are dropped."""
        return Program(self._starts.static, self._steps.static, self.store.states, self.store.inputs)


class FusedConvolution(nn.Module):
    """A `ShortConvolution` whose rows are computed by one kernel."""

    def __init__(self, own: ShortConvolution) -> None:
        super().__init__()
        self.conv_in, self.conv_taps, self.conv_out = own.conv_in, own.conv_taps, own.conv_out
        self._sizes = own.sizes

    def forward(self, x: Tensor, layer: int, step: Pass) -> Tensor:
        before, after, inputs = self.conv_in(x).chunk(3, dim=-1)
        program = cast(RecurrentCache, step.cache).program
        mixed = convolved(before * inputs, self.conv_taps.weight, layer, program, self._sizes)
        return self.conv_out(after * mixed.to(x.dtype))


class FusedStates(nn.Module):
    """A layer of `MatrixStates` whose rows are computed by one kernel.

    Args:
        project: the linear layers of `own.inputs` and of z, joined where they can be.
    """

    def __init__(self, own: MatrixStates, project: nn.Module) -> None:
        super().__init__()
        self.project, self.state_out = project, own.state_out
        self.taps, self.step_shift, self.decay, self.norm = own.taps, own.step_shift, own.decay, own.norm
        self.skip = own.skip if isinstance(own, StateSpace) else None
        self._sizes, self._eps = own.sizes, own.eps
        self._ones = torch.ones(own.sizes.width // own.sizes.key_heads, device=own.norm.weight.device)

    def forward(self, x: Tensor, layer: int, step: Pass) -> Tensor:
        *parts, z = self.project(x)
        program = cast(RecurrentCache, step.cache).program
        mixed = matrix_states(torch.cat(parts, dim=-1), self._weights, layer, program, self._sizes)
        return self.state_out(self._left(mixed, functional.silu(z.float())).to(x.dtype))

    @property
    def _weights(self) -> MatrixWeights:
        skip = None if self.skip is None else self.skip.weight
        return MatrixWeights(self.taps.weight, self.taps.bias, self.decay.weight, self.step_shift.bias, skip)

    def _left(self, mixed: Tensor, gate: Tensor) -> Tensor:
        """See `MatrixStates.leave`; `mixed` is [M, V, v] and `gate` [M, width]."""
        if self.skip is None:
            normed = rms_norm(mixed, self.norm.weight, self._eps, out=torch.empty_like(mixed))[1]
            return normed.flatten(1) * gate
        groups = (mixed.flatten(1) * gate).view(len(mixed), self._sizes.key_heads, -1)
        normed = rms_norm(groups, self._ones, self._eps, out=torch.empty_like(groups), begins_early=False)[1]
        return normed.flatten(1) * self.norm.weight.float()
