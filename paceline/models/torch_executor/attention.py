"""`SegmentAttention`: attention over cached slots, one segment after another, as clear torch code.

Layers use the interface `Attends`, for which `cuda_executor/` has its own implementation. Shapes: M rows, H query
heads, K key heads, D = head_dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paceline.models.torch_executor.cache import SegmentView


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """Parameters of a layer's attention.

    Attributes:
        scale: factor on scores.
        cap: soft cap of scores, cap tanh(x / cap); 0 for none.
        window: sliding window in keys, the row's own included; 0 for full attention.
        sinks: [H] scores of one more key per head, which has no value (gpt-oss); None without.
    """

    scale: float
    cap: float = 0.0
    window: int = 0
    sinks: Tensor | None = None


class Attends(Protocol):
    """The attention of one pass: it knows which slots each row sees."""

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, form: AttentionForm) -> Tensor:
        """[M, H, D]: values mixed by softmax(query . key * scale) over the slots each row sees.

        Args:
            query: [M, H, D].
            keys, values: [slots, K, D] of one layer, the rows' own already among them.
        """
        ...


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap tanh(x / cap), x itself without a cap (Gemma 2)."""
    return torch.tanh(x / cap) * cap if cap else x


class SegmentAttention:
    """PyTorch's own attention over each segment's slots, with a mask.

    Args:
        views: the slots and masks of each segment.
        weights: a tensor [m, n] per view to which each layer adds its attention, averaged over heads; None if unused.
    """

    def __init__(self, views: Sequence[SegmentView], weights: Sequence[Tensor] | None = None) -> None:
        self._views, self._sums = views, weights

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, form: AttentionForm) -> Tensor:
        """See `Attends`."""
        mixed = torch.empty_like(query)
        for i, view in enumerate(self._views):
            q, k, v = (t.transpose(0, 1) for t in (query[view.rows], keys[view.slots], values[view.slots]))
            mask = view.masks[form.window]
            if form.cap or form.sinks is not None:
                found = _weights(q, k, mask, form).to(v.dtype) @ _repeated(v, len(q))
            else:
                found = functional.scaled_dot_product_attention(
                    q[None], k[None], v[None], attn_mask=mask, enable_gqa=True, scale=form.scale
                )[0]
            mixed[view.rows] = found.transpose(0, 1)
            if self._sums is not None:
                self._sums[i].add_(_weights(q, k, mask, form).mean(dim=0))
        return mixed


def _repeated(x: Tensor, heads: int) -> Tensor:
    """[H, n, D] of keys or values [K, n, D]."""
    return x.repeat_interleave(heads // len(x), dim=0)


def _weights(query: Tensor, key: Tensor, mask: Tensor, form: AttentionForm) -> Tensor:
    """[H, m, n] softmax(query . key * scale) of query [H, m, D] and key [K, n, D]."""
    scores = query.float() @ _repeated(key, len(query)).float().transpose(1, 2) * form.scale
    scores = soft_cap(scores, form.cap).masked_fill(~mask, -torch.inf)
    if form.sinks is None:
        return scores.softmax(dim=-1)
    sinks = form.sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
