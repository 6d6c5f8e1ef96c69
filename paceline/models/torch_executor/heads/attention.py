"""Attention of anchors: each sees rows of its own document, and a few keys of its own besides."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Keys(NamedTuple):
    """Keys and values, [n, key heads, D] each."""

    keys: Tensor
    values: Tensor


class Part(NamedTuple):
    """One document: which anchors are its own, which rows, and which of these each anchor sees [anchors, rows]."""

    anchors: slice
    rows: slice
    visible: Tensor


def parts_of(anchors: Tensor, lengths: Sequence[int]) -> list[Part]:
    """The documents that have anchors; an anchor sees the rows of its document up to its own."""
    parts, start = [], 0
    for length in lengths:
        low, high = (int(torch.searchsorted(anchors, value)) for value in (start, start + length))
        if low < high:
            rows = torch.arange(start, start + length, device=anchors.device)
            parts.append(Part(slice(low, high), slice(start, start + length), rows <= anchors[low:high, None]))
        start += length
    return parts


def attend(query: Tensor, rows: Keys, own: Keys | None, parts: Sequence[Part], repeat: int = 1) -> Tensor:
    """[S * repeat, heads * D] values mixed for the queries of S anchors, `repeat` queries each.

    Args:
        query: [S * repeat, heads, D].
        rows: [N] of all documents.
        own: [S * repeat, own keys, key heads, D] that each query sees besides.
    """
    mixed = []
    for part in parts:
        these = slice(part.anchors.start * repeat, part.anchors.stop * repeat)
        visible = part.visible.repeat_interleave(repeat, dim=0)
        besides = None if own is None else Keys(own.keys[these], own.values[these])
        mixed.append(_mix(query[these], Keys(rows.keys[part.rows], rows.values[part.rows]), besides, visible))
    return torch.cat(mixed)


def _mix(query: Tensor, rows: Keys, own: Keys | None, visible: Tensor) -> Tensor:
    """softmax(query . key / sqrt(D)) over visible rows and own keys, times values; inside in float32."""
    num, heads, size = query.shape
    groups = rows.keys.shape[1]
    grouped = query.view(num, groups, heads // groups, size).permute(1, 2, 0, 3)  # [groups, share, num, D]
    scores = grouped.flatten(1, 2) @ rows.keys.permute(1, 2, 0).to(query.dtype)
    scores = scores.view(groups, heads // groups, num, -1).float().masked_fill(~visible, -torch.inf)
    if own is not None:
        further = torch.einsum("gsnd,nmgd->gsnm", grouped.float(), own.keys.float())
        scores = torch.cat([scores, further.float()], dim=-1)
    weights = torch.softmax(scores * size**-0.5, dim=-1)
    count = len(rows.keys)
    mixed = weights[..., :count].flatten(1, 2) @ rows.values.transpose(0, 1).float()
    mixed = mixed.float().view(groups, heads // groups, num, size)
    if own is not None:
        mixed = mixed + torch.einsum("gsnm,nmgd->gsnd", weights[..., count:], own.values.float())
    return mixed.permute(2, 0, 1, 3).reshape(num, heads * size)
