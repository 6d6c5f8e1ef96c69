"""Chains drafted from anchors while training: EAGLE-3's training-time test, and HASS's context alignment.

In EAGLE-3 (Li et al. 2025, section 3.2) step j of the chain of anchor p reads the text's token p + 1 + j and the output
of step j - 1, and attends to the true keys of rows 0..p and to the chain's keys of steps 1..j, as in serving. HASS's
alignment (Zhang et al. 2024, section 3.2) sees the same, but no gradient flows from a step to the output of the one
before.
"""

import torch
from torch import Tensor

from paceline.models.torch_executor.heads.attention import Keys, attend, parts_of
from paceline.models.torch_executor.heads.eagle import Eagle
from paceline.models.torch_executor.heads.eagle3 import Eagle3
from paceline.training.heads.batches import Batch


def rollout(net: Eagle3 | Eagle, batch: Batch, num_steps: int, detached: bool = False,
            noise: Tensor | None = None) -> list[Tensor]:  # fmt: skip
    """States that the output head reads, for each of `num_steps` steps of the anchors' chains: [S, hidden] each.

    Args:
        detached: no gradient flows from a step to the output of the one before.
        noise: [N, hidden] that is added to the target's states.
    """
    layer, anchors = net.layer, batch.anchors
    positions = torch.cat([torch.arange(n, device=anchors.device) for n in batch.lengths])
    parts = parts_of(anchors, batch.lengths)
    states = net.project(batch.taps)
    inputs, residual = net.enter(batch.next_tokens, states if noise is None else states + noise)
    rows = Keys(*layer.self_attn.keys_values(inputs, positions))
    x, residual = inputs[anchors], residual[anchors]
    chain: list[Keys] = []
    outputs: list[Tensor] = []
    for step in range(num_steps):
        place = positions[anchors] + step
        if step:
            chain.append(Keys(*layer.self_attn.keys_values(x, place)))
        mixed = attend(layer.self_attn.queries(x, place), rows, _stacked(chain), parts)
        read, fed = net.finish(layer.leave(residual, mixed).float())
        outputs.append(read)
        if step + 1 < num_steps:
            x, residual = net.enter(batch.tokens(step + 1), fed.detach() if detached else fed)
    return outputs


def _stacked(chain: list[Keys]) -> Keys | None:
    """Keys and values [S, steps, key heads, D] of all steps; None before the first."""
    if not chain:
        return None
    return Keys(torch.stack([one.keys for one in chain], dim=1), torch.stack([one.values for one in chain], dim=1))
