"""From rows of logits to laws, many rows at once: the twin of `sampling.warp.Warper`, whose order and ties it keeps."""

import torch
from torch import Tensor

from paceline.models.cuda_executor.laws.asked import RowEdits

MASS_UNIT = 2.0**40
"""Of the mass of a nucleus: as many units as the most probable token has, so that sums are exact integers."""


def edited(logits: Tensor, edits: RowEdits | None) -> Tensor:
    """[w, vocab] float64: logits [w, vocab] after `edits`."""
    scores = logits.double()
    if edits is None:
        return scores
    flat = scores.view(-1)
    flat[edits.biased] += edits.bias
    old = flat[edits.penalised]
    flat[edits.penalised] = torch.where(old > 0, old / edits.repetition, old * edits.repetition) - edits.subtracted
    flat[edits.forbidden] = -torch.inf
    if len(edits.masked):
        scores[edits.masked] = scores[edits.masked].masked_fill(~edits.allowed, -torch.inf)
    return scores


def law_weights(
    scores: Tensor, temperature: Tensor, min_p: Tensor, top_k: Tensor, top_p: Tensor, truncates: bool
) -> Tensor:
    """[s, vocab] float64, proportional to the warped laws, 1 at the peak and 0 outside the support.

    Args:
        scores: [s, vocab] float64.
        temperature, min_p, top_k, top_p: [s, 1], as of `truncated_law`; temperatures above 0.
        truncates: whether any row is cut by top_k or top_p.
    """
    gaps = (scores - scores.amax(-1, keepdim=True)) / temperature
    gaps = gaps.masked_fill((min_p > 0) & (gaps < min_p.log()), -torch.inf)
    if not truncates:
        return gaps.exp()
    ordered, places = gaps.sort(dim=-1, descending=True, stable=True)
    last = (top_k - 1).clamp(0, gaps.shape[-1] - 1)
    edge = ordered.gather(-1, last).masked_fill(top_k == 0, -torch.inf)
    ordered = ordered.masked_fill(ordered < edge, -torch.inf)
    weights = ordered.exp()
    units = (weights * MASS_UNIT).round().long()
    before = units.cumsum(-1) - units
    inside = (before < top_p * (before[:, -1:] + units[:, -1:]).double()) | (top_p >= 1)
    return torch.zeros_like(weights).scatter_(-1, places, weights * inside)


def ordered_sum(values: Tensor) -> Tensor:
    """[s, 1] the sum of each row of values [s, n], halves added to halves, in an order that depends on n alone."""
    while values.shape[-1] > 1:
        half = (values.shape[-1] + 1) // 2
        first, second = values[:, :half], values[:, half:]
        values = torch.cat([first[:, : second.shape[-1]] + second, first[:, second.shape[-1] :]], dim=-1)
    return values
