"""Training-time test of EAGLE-3 (Li et al. 2025, section 3.2): chains drafted from anchors while training.

The step j of the chain of anchor p reads the text's token p + 1 + j and its own output of step j - 1, and attends to
the true keys of rows 0..p and to its own keys of steps 1..j: what a draft sees when it is served.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.models.torch_executor.heads.eagle3 import Eagle3


def mix(query: Tensor, keys: Tensor, values: Tensor, chain: list[tuple[Tensor, Tensor]], visible: Tensor) -> Tensor:
    """Attention of one document's anchors, [S, heads * D].

    Args:
        query: [S, heads, D].
        keys, values: [n, key heads, D] of the document's rows.
        chain: per earlier step of the chains, keys and values [S, key heads, D].
        visible: [S, n] which rows each anchor sees.
    """
    num, heads, size = query.shape
    groups = keys.shape[1]
    grouped = query.view(num, groups, heads // groups, size).permute(1, 2, 0, 3)  # [groups, share, S, D]
    scores = grouped.flatten(1, 2) @ keys.permute(1, 2, 0)
    scores = scores.view(groups, heads // groups, num, -1).float().masked_fill(~visible, -torch.inf)
    own = [(grouped * key.transpose(0, 1)[:, None]).sum(-1, keepdim=True).float() for key, _ in chain]
    weights = torch.softmax(torch.cat([scores, *own], dim=-1) * size**-0.5, dim=-1)
    mixed = weights[..., : len(keys)].flatten(1, 2) @ values.transpose(0, 1).float()
    mixed = mixed.view(groups, heads // groups, num, size)
    for i, (_, value) in enumerate(chain):
        mixed = mixed + weights[..., len(keys) + i, None] * value.transpose(0, 1)[:, None].float()
    return mixed.permute(2, 0, 1, 3).reshape(num, heads * size)


def rollout(
    net: Eagle3, taps: Tensor, tokens: Tensor, lengths: Sequence[int], anchors: Tensor, num_steps: int
) -> list[Tensor]:
    """What the head reads at every step of every anchor's chain: `num_steps` times [S, hidden].

    Args:
        taps: [N, taps, target's hidden] of the rows of several documents, one after the other.
        tokens: [N] the token after each row's; after the last row of a document nothing is read.
        lengths: rows of each document.
        anchors: [S] rows at which chains begin, ascending; those of step j read `tokens[anchor + j]`.
    """
    layer, positions = net.layer, torch.cat([torch.arange(n, device=taps.device) for n in lengths])
    hidden, ends = net.project(taps), torch.tensor(lengths).cumsum(0)
    inputs, residual = layer.enter(net.embed(tokens), hidden)
    keys, values = layer.self_attn.keys_values(inputs, positions)
    x, residual, chain, outputs = inputs[anchors], residual[anchors], [], []
    parts = _parts(anchors, ends.tolist(), lengths)
    for step in range(num_steps):
        place = positions[anchors] + step
        if step:
            x, residual = layer.enter(net.embed(tokens[torch.clamp(anchors + step, max=len(tokens) - 1)]), fed)  # noqa: F821
            chain.append(layer.self_attn.keys_values(x, place))
        query = layer.self_attn.queries(x, place)
        mixed = torch.cat([
            mix(query[own], keys[rows], values[rows], [(k[own], v[own]) for k, v in chain], visible)
            for own, rows, visible in parts
        ])  # fmt: skip
        read, fed = net.finish(layer.leave(residual, mixed).float())
        outputs.append(read)
    return outputs


def _parts(anchors: Tensor, ends: list[int], lengths: Sequence[int]) -> list[tuple[slice, slice, Tensor]]:
    """Per document with anchors: which anchors are its own, which rows, and what each anchor sees of them."""
    parts = []
    for end, length in zip(ends, lengths, strict=True):
        low, high = (int(torch.searchsorted(anchors, value)) for value in (end - length, end))
        if low < high:
            rows = torch.arange(end - length, end, device=anchors.device)
            parts.append((slice(low, high), slice(end - length, end), rows[None] <= anchors[low:high, None]))
    return parts
