"""Muon for matrices and AdamW for the rest, a cosine schedule with warm-up, and an average of the weights."""

import math
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

WARM_UP_STEPS = 60
"""Updates until the learning rate is reached: the first ones have no average of gradients to go by. Not tuned."""
_LEAST_SHARE = 0.03
"""Where the cosine ends, as a share of the peak. Not tuned."""
_MEAN = 0.998
"""Largest decay of the average of weights: over some 500 updates, of the thousands that a run has. Not tuned."""


class Optimiser:
    """Muon and AdamW behind one interface.

    Matrices are updated by Muon (Jordan et al. 2024), scaled so that AdamW's learning rates fit (Liu et al. 2025,
    section 2.2); embeddings, norms and biases by AdamW.

    Args:
        factors: factors of the learning rate, by prefix of a parameter's name; 1 for other names.
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
        """Make one update at this learning rate and clear the gradients."""
        for part, factors in zip(self._parts, self._factors, strict=True):
            for group, factor in zip(part.param_groups, factors, strict=True):
                group["lr"] = rate * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict]:
        """The state for `restore`."""
        return [part.state_dict() for part in self._parts]

    def restore(self, state: list[dict]) -> None:
        """Continue from `state`."""
        for part, one in zip(self._parts, state, strict=True):
            part.load_state_dict(one)


def rate_at(step: int, num_steps: int, peak: float) -> float:
    """Learning rate of step `step` of `num_steps`: half a cosine from `peak` to 3 % of it, times a linear warm-up."""
    share = min(step / max(num_steps, 1), 1.0)
    fall = _LEAST_SHARE + (1 - _LEAST_SHARE) * 0.5 * (1 + math.cos(math.pi * share))
    return peak * min(1.0, (step + 1) / WARM_UP_STEPS) * fall


class Mean:
    """Exponential moving average of a network's weights; it is what is evaluated and saved."""

    def __init__(self, net: nn.Module) -> None:
        self.weights: dict[str, Tensor] = {name: one.detach().clone() for name, one in net.state_dict().items()}

    def restore(self, weights: dict[str, Tensor]) -> None:
        """Continue from these weights, on the devices where the network's are."""
        self.weights = {name: weights[name].to(own.device) for name, own in self.weights.items()}

    @torch.no_grad()
    def update(self, net: nn.Module, step: int) -> None:
        """Average in the weights after step `step`; the decay rises to 0.998, so that early weights are forgotten."""
        share = min(_MEAN, (step + 1) / (step + 20))
        for name, one in net.state_dict().items():
            self.weights[name].lerp_(one, 1 - share)
