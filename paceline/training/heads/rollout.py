"""Training-time test of EAGLE-3 (Li et al. 2025, section 3.2): chains drafted from anchors while training.

The step j of the chain of anchor p reads the text's token p + 1 + j and its own output of step j - 1, and attends to
the true keys of rows 0..p and to its own keys of steps 1..j: what a draft sees when it is served.
"""

import torch
from torch import Tensor

from paceline.models.torch_executor.heads.eagle3 import Eagle3
from paceline.training.heads.attention import Keys, attend, parts_of
from paceline.training.heads.batches import Batch


def rollout(net: Eagle3, batch: Batch, num_steps: int) -> list[Tensor]:
    """What the head reads at every step of every anchor's chain: `num_steps` times [S, hidden]."""
    layer, anchors = net.layer, batch.anchors
    positions = torch.cat([torch.arange(n, device=anchors.device) for n in batch.lengths])
    parts = parts_of(anchors, batch.lengths)
    inputs, residual = net.enter(batch.next_tokens, net.project(batch.taps))
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
            x, residual = net.enter(batch.tokens(step + 1), fed)
    return outputs


def _stacked(chain: list[Keys]) -> Keys | None:
    """[S, steps, key heads, D] of the keys of each step."""
    if not chain:
        return None
    return Keys(torch.stack([one.keys for one in chain], dim=1), torch.stack([one.values for one in chain], dim=1))
