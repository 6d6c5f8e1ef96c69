"""Drafts of a half-autoregressive head from the anchors of a batch, block by block, as in serving.

The first block of anchor p is the rows p - k + 1 .. p with the target's states. Every further block has the text's
next k tokens and the outputs of the previous block, and attends to the rows up to p and to all drafted rows so far.
For evaluations; Falcon is trained on whole texts instead (`recipes/falcon.py`).
"""

import torch
from torch import Tensor

from paceline.models.torch_executor.heads.attention import Keys, attend, parts_of
from paceline.models.torch_executor.heads.falcon import Falcon
from paceline.training.heads.batches import Batch


def rollout_blocks(net: Falcon, batch: Batch, num_steps: int) -> list[Tensor]:
    """States that the output head reads, for each of `num_steps` steps of the anchors' drafts: [S, hidden] each.

    Where an anchor has fewer than k rows up to it, its text's first row stands in for the missing ones (serving does
    not draft there).
    """
    layer, anchors, size = net.layer, batch.anchors, net.config.block_tokens
    positions = torch.cat([torch.arange(n, device=anchors.device) for n in batch.lengths])
    parts, steps = parts_of(anchors, batch.lengths), torch.arange(size, device=anchors.device)
    states = net.run(net.enter(batch.next_tokens, net.project(batch.normed[:, None])), batch.lengths)
    x = states.outputs[-1]
    rows = Keys(*layer.self_attn.keys_values(x, positions))
    back = torch.minimum(size - 1 - steps, positions[anchors][:, None])
    block, place = x[anchors[:, None] - back], positions[anchors][:, None] - back
    state, drafted = states.at(anchors), list[Keys]()
    outputs: list[Tensor] = []
    while len(outputs) < num_steps:
        own = _seen(drafted, size)
        mixed = attend(layer.self_attn.queries(block.flatten(0, 1), place.flatten()), rows, own, parts, size)
        named = layer.leave(block.flatten(0, 1), mixed).unflatten(0, (len(anchors), size))
        first = len(outputs)
        outputs += named.unbind(1)
        inner = []
        for step in range(size):
            state = net.step(net.enter(batch.tokens(first + 1 + step), named[:, step]), state)
            inner.append(state.outputs[-1])
        block, place = torch.stack(inner, dim=1), positions[anchors][:, None] + 1 + first + steps
        found = Keys(*layer.self_attn.keys_values(block.flatten(0, 1), place.flatten()))
        drafted.append(Keys(*(one.view(len(anchors), size, *one.shape[1:]) for one in found)))
    return outputs[:num_steps]


def _seen(drafted: list[Keys], size: int) -> Keys | None:
    """Keys and values [S * size, drafted rows, key heads, D] of all drafted rows, for each query of a block."""
    if not drafted:
        return None
    joined = (torch.cat(parts, dim=1).repeat_interleave(size, dim=0) for parts in zip(*drafted, strict=True))
    return Keys(*joined)
