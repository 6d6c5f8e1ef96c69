"""Attention in training: queries of anchors attend to rows of their document, and to a few keys of their own."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Keys(NamedTuple):
    """Keys and values, [n, key heads, D] each."""

    keys: Tensor
    values: Tensor


class Part(NamedTuple):
    """One document: its anchors, its rows, and the mask [anchors, rows] of the rows that each anchor attends to.

    A mask of None means that the anchors are the rows, with causal attention.
    """

    anchors: slice
    rows: slice
    visible: Tensor | None = None


def parts_of(anchors: Tensor, lengths: Sequence[int]) -> list[Part]:
    """The documents that have anchors; an anchor attends to the rows of its document up to its own."""
    parts, start = [], 0
    for length in lengths:
        low, high = (int(torch.searchsorted(anchors, value)) for value in (start, start + length))
        if low < high:
            rows = torch.arange(start, start + length, device=anchors.device)
            parts.append(Part(slice(low, high), slice(start, start + length), rows <= anchors[low:high, None]))
        start += length
    return parts


def attend(query: Tensor, rows: Keys, own: Keys | None, parts: Sequence[Part], repeat: int = 1) -> Tensor:
    """Output of attention [S * repeat, heads * D] for S anchors with `repeat` queries each.

    Args:
        query: [S * repeat, heads, D].
        rows: keys and values of the N rows of all documents.
        own: additional keys and values of each query, [S * repeat, own keys, key heads, D].
    """
    mixed = []
    for part in parts:
        these = slice(part.anchors.start * repeat, part.anchors.stop * repeat)
        seen = Keys(rows.keys[part.rows], rows.values[part.rows])
        visible = None if part.visible is None else part.visible.repeat_interleave(repeat, dim=0)
        if own is None:
            mixed.append(mix(query[these], seen, visible))
        else:
            assert visible is not None
            mixed.append(_mix_both(query[these], seen, Keys(own.keys[these], own.values[these]), visible))
    return torch.cat(mixed) if mixed else query.flatten(1).float()  # none, where no document has anchors


def mix(query: Tensor, rows: Keys, visible: Tensor | None) -> Tensor:
    """[n, heads * D] float32 softmax(query . key / sqrt(D)) over visible rows, times values; None is causal."""
    inputs = (one.float().transpose(0, 1)[None] for one in (query, *rows))
    found = functional.scaled_dot_product_attention(
        *inputs, attn_mask=visible, is_causal=visible is None, enable_gqa=True
    )
    return found[0].transpose(0, 1).flatten(1).float()


def _mix_both(query: Tensor, rows: Keys, own: Keys, visible: Tensor) -> Tensor:
    """As `mix` over visible rows and own keys."""
    num, heads, size = query.shape
    groups = rows.keys.shape[1]
    grouped = query.view(num, groups, heads // groups, size).permute(1, 2, 0, 3)  # [groups, share, num, D]
    scores = grouped.flatten(1, 2) @ rows.keys.permute(1, 2, 0).to(query.dtype)
    scores = scores.view(groups, heads // groups, num, -1).float().masked_fill(~visible, -torch.inf)
    further = torch.einsum("gsnd,nmgd->gsnm", grouped.float(), own.keys.float())
    scores = torch.cat([scores, further.float()], dim=-1)
    weights = torch.softmax(scores * size**-0.5, dim=-1)
    count = len(rows.keys)
    mixed = weights[..., :count].flatten(1, 2) @ rows.values.transpose(0, 1).float()
    mixed = mixed.float().view(groups, heads // groups, num, size)
    mixed = mixed + torch.einsum("gsnm,nmgd->gsnd", weights[..., count:], own.values.float())
    return mixed.permute(2, 0, 1, 3).reshape(num, heads * size)
