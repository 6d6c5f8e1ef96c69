"""`FusedExperts`: a mixture of experts as five kernels, so that a pass over one can be recorded as a graph.

The experts' matrices are stacked. A pass over so many rows that it is not recorded (a prompt) takes one expert after
another with a library's products instead, and asks the host which ones; a deterministic model takes the kernels for any
number of rows, some at a time. Not for the kernels (`kernels/experts.py`) or what a mixture is
(`torch_executor/layers.py`).
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.cuda_executor.block_layers import BlockLinear, times
from paceline.models.cuda_executor.block_matrix import BlockMatrix
from paceline.models.cuda_executor.kernels.experts import MOST_PAIRS, grouped, lowered, raised, route
from paceline.models.cuda_executor.kernels.products import Weights, product
from paceline.models.cuda_executor.staging import LARGEST
from paceline.models.torch_executor.layers import FeedForward, MixtureOfExperts, Pass, of_shared
from paceline.models.torch_executor.split_layers import alone

_Linears = Sequence[nn.Linear | BlockLinear]


def can_stack(own: nn.Module) -> bool:
    """Whether `own` is a mixture whose experts' matrices have one form each, so that they can be stacked."""
    if not isinstance(own, MixtureOfExperts):
        return False
    raising, lowering = _raising(own), _linears(own, "down")
    known = all(isinstance(each, nn.Linear | BlockLinear) for each in (*raising, *lowering))
    return known and len({*map(_form, raising)}) == len({*map(_form, lowering)}) == 1


class FusedExperts(nn.Module):
    """The mixture `own`, for which `can_stack` holds.

    Args:
        shared: the feed-forward of the shared expert, if there is one.
        deterministic: use the kernels for any number of rows.
        scales: [experts] factors on the shares of each expert; None for none.
    """

    is_plain = True
    """See `FusedLayer`."""

    def __init__(
        self, own: MixtureOfExperts, shared: nn.Module | None, deterministic: bool, scales: Tensor | None = None
    ) -> None:
        super().__init__()
        self.router, self._experts, self._deterministic = own.router, own.settings, deterministic
        self._total = own.total
        self.shared, self.shared_gate, self._scales = shared, own.shared_gate, scales
        self.selection = None if own.selection is None else own.selection.bias
        self._activate = cast(FeedForward, own.experts[0])
        self._is_gated = self._activate.gate is not None
        raising, downs = _raising(own), _linears(own, "down")
        self.raise_both, self.raise_bias = _stacked(raising), _biases(raising)
        self.lower, self.lower_bias = _stacked(downs), _biases(downs)
        self._activate.gate = self._activate.up = self._activate.down = None  # type: ignore[assignment]
        del own.experts

    def forward(self, x: Tensor, step: Pass | None = None, routed_by: Tensor | None = None) -> Tensor:
        """What the mixture adds to rows x [M, hidden], of all ranks.

        Args:
            step: see `parts`.
            routed_by: [M, hidden] what the router reads; x by default.
        """
        return self._total(self._own(x, step, x if routed_by is None else routed_by))

    def _own(self, x: Tensor, step: Pass | None, routed_by: Tensor) -> Tensor:
        """This rank's part of `forward`."""
        if len(x) <= self._most:
            return _summed(self.parts(x, step, routed_by)).to(x.dtype)
        if self._deterministic or len(x) <= LARGEST:  # a recorded pass cannot ask the host
            pieces = zip(x.split(self._most), routed_by.split(self._most), strict=True)
            return torch.cat([_summed(self.parts(some, None, own)) for some, own in pieces]).to(x.dtype)
        return self._one_by_one(x, routed_by)

    @property
    def _most(self) -> int:
        """Most rows of a launch."""
        return MOST_PAIRS // self._experts.num_experts_per_tok

    def parts(self, x: Tensor, step: Pass | None = None, routed_by: Tensor | None = None) -> Tensor:
        """[parts, M, hidden] float32, whose sum is what this rank's mixture adds to rows x: one part for each choice,
        or one of all where there are several ranks, which exchange parts.

        Args:
            step: tells which rows are padding, which need no experts.
            routed_by: see `forward`; only for rows of one launch.
        """
        if len(x) > self._most:
            assert routed_by is None
            return torch.cat([self.parts(some) for some in x.split(self._most)], dim=1)
        top_k, count = self._experts.num_experts_per_tok, self._experts.num_experts
        chosen, shares = self._routed(x if routed_by is None else routed_by, step)
        tiles = grouped(chosen)
        inner = raised(x, self.raise_both, self.raise_bias, tiles, count, self._activate.gate_name)
        found = lowered(inner, self.lower, self.lower_bias, tiles, count, shares)
        assert found.shape[0] == top_k
        shared = self._shared(x)
        found = found if shared is None else torch.cat([found, shared[None].float()])
        return found if self._total is alone else _summed(found)[None]

    def _routed(self, x: Tensor, step: Pass | None) -> tuple[Tensor, Tensor]:
        logits = torch.empty(len(x), self._experts.num_experts, device=x.device)
        product(x, cast(Weights, self.router.weight), self.router.bias, out=logits)
        slots = (None, -1) if step is None else (step.slots, getattr(step.cache, "spare_slot", -1))
        chosen, shares = route(logits, self._experts, self.selection, *slots)
        if self._scales is not None:  # padding rows have expert -1
            shares = shares * self._scales[chosen.clamp_min(0)]
        return chosen, shares

    def _shared(self, x: Tensor) -> Tensor | None:
        return None if self.shared is None else of_shared(self.shared, self.shared_gate, x)

    def _one_by_one(self, x: Tensor, routed_by: Tensor) -> Tensor:
        """`forward` of many rows."""
        chosen, shares = self._routed(routed_by, None)
        mixed = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            rows, choices = torch.nonzero(chosen == number, as_tuple=True)
            both = self._product(x[rows], self.raise_both, self.raise_bias, number)
            acted = self._activate.gated(*both.chunk(2, dim=-1)) if self._is_gated else self._activate.activation(both)
            found = self._product(acted, self.lower, self.lower_bias, number)
            mixed[rows] += found * shares[rows, choices, None].to(x.dtype)
        shared = self._shared(x)
        return mixed if shared is None else mixed + shared

    def _product(self, x: Tensor, stacked: Weights, bias: Tensor | None, number: int) -> Tensor:
        """x times the matrix of an expert, plus its bias."""
        size = stacked.shape[0] // self._experts.num_experts
        own = slice(number * size, (number + 1) * size)
        added = None if bias is None else bias[own]
        if isinstance(stacked, BlockMatrix):
            return times(stacked.part((own,)), x, added)
        return functional.linear(x, stacked[own], added)


def _summed(parts: Tensor) -> Tensor:
    """The sum of parts [parts, M, hidden] in their order."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _linears(own: MixtureOfExperts, name: str) -> _Linears:
    """One linear layer of every expert."""
    return [getattr(expert, name) for expert in own.experts]


def _raising(own: MixtureOfExperts) -> _Linears:
    """The layers that every expert begins with: gate and up, or up alone."""
    names = ("up",) if cast(FeedForward, own.experts[0]).gate is None else ("gate", "up")
    return [getattr(expert, name) for expert in own.experts for name in names]


def _form(layer: nn.Linear | BlockLinear) -> tuple:
    """Equal for layers that can be stacked."""
    weight = layer.weight
    form = weight.form if isinstance(weight, BlockMatrix) else (weight.dtype,)
    return (*form, *weight.shape, layer.bias is None)


def _stacked(layers: _Linears) -> Weights:
    """Their matrices, one after another."""
    weights = [layer.weight for layer in layers]
    if isinstance(weights[0], BlockMatrix):
        return BlockMatrix.joined(cast(list[BlockMatrix], weights))
    return nn.Parameter(torch.cat([cast(Tensor, weight).detach() for weight in weights]), requires_grad=False)


def _biases(layers: _Linears) -> nn.Parameter | None:
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    return nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None
