"""Muon for matrices and AdamW for the rest, a cosine with a short rise, and a running mean of the weights."""

import math
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

WARM_UP_STEPS = 60
_LEAST_SHARE = 0.03
_MEAN = 0.998


class Optimiser:
    """Both optimisers as one.

    Matrices take Muon's orthogonal steps (Jordan et al. 2024), scaled so that AdamW's rates fit them (Liu et al. 2025,
    section 2.2); tables of tokens, norms and biases take AdamW.

    Args:
        factors: rates over the common one, by the beginning of a parameter's name.
    """

    def __init__(self, net: nn.Module, factors: Mapping[str, float] = MappingProxyType({})) -> None:
        tables = {id(one.weight) for one in net.modules() if isinstance(one, nn.Embedding)}
        matrices: dict[float, list[nn.Parameter]] = defaultdict(list)
        rest: dict[float, list[nn.Parameter]] = defaultdict(list)
        for name, one in net.named_parameters():
            if one.requires_grad:
                is_matrix = one.ndim == 2 and id(one) not in tables and min(one.shape) > 1
                factor = next((each for part, each in factors.items() if name.startswith(part)), 1.0)
                (matrices if is_matrix else rest)[factor].append(one)
        self._parts: list[torch.optim.Optimizer] = []
        self._factors = [list(each) for each in (matrices, rest) if each]
        if matrices:
            groups = [{"params": each} for each in matrices.values()]
            self._parts.append(torch.optim.Muon(groups, lr=0.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"))
        if rest:
            groups = [{"params": each} for each in rest.values()]
            self._parts.append(torch.optim.AdamW(groups, lr=0.0, weight_decay=0.0, betas=(0.9, 0.95)))

    def step(self, rate: float) -> None:
        """One update at this rate; gradients are gone afterwards."""
        for part, factors in zip(self._parts, self._factors, strict=True):
            for group, factor in zip(part.param_groups, factors, strict=True):
                group["lr"] = rate * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict]:
        """What `restore` goes on from."""
        return [part.state_dict() for part in self._parts]

    def restore(self, state: list[dict]) -> None:
        """Go on as at `state`."""
        for part, one in zip(self._parts, state, strict=True):
            part.load_state_dict(one)


def rate_at(step: int, num_steps: int, peak: float) -> float:
    """Learning rate of step `step` of `num_steps`: a linear rise, then half a cosine down to 3 % of the peak."""
    share = min(step / max(num_steps, 1), 1.0)
    fall = _LEAST_SHARE + (1 - _LEAST_SHARE) * 0.5 * (1 + math.cos(math.pi * share))
    return peak * min(1.0, (step + 1) / WARM_UP_STEPS) * fall


class Mean:
    """Running mean of a network's weights, the form in which it is measured and saved."""

    def __init__(self, net: nn.Module) -> None:
        self.weights: dict[str, Tensor] = {name: one.detach().clone() for name, one in net.state_dict().items()}

    def restore(self, weights: dict[str, Tensor]) -> None:
        """Go on with these, on the devices where the weights are."""
        self.weights = {name: weights[name].to(own.device) for name, own in self.weights.items()}

    @torch.no_grad()
    def update(self, net: nn.Module, step: int) -> None:
        """Take in the weights after step `step`; the first ones count for little later on."""
        share = min(_MEAN, (step + 1) / (step + 20))
        for name, one in net.state_dict().items():
            self.weights[name].lerp_(one, 1 - share)
