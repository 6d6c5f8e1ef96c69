"""Losses of draft heads against the target's law, fused with the product of the head.

q is the head's law over its own vocabulary, p the target's over the same tokens. The rows of the head are frozen, so
all that is needed of the backward pass is the gradient by the hidden state, which is computed with the loss, a few rows
at a time: no logits are kept.

- soft cross entropy: -sum p log q.
- LK hybrid (2602.23881): lam * soft cross entropy + (1 - lam) * (1 - a) with the acceptance a = sum min(p, q) and
  lam = exp(-eta * a), held constant in the backward pass.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK = 256
"""Rows whose logits are in memory at a time."""


class LossParts(NamedTuple):
    """Sum of weighted losses (a scalar with a gradient), the acceptance [n] of each row, and whether the head's most
    probable token is the target's [n]."""

    loss: Tensor
    acceptance: Tensor
    hits: Tensor


def row_gradients(logits: Tensor, target: Tensor, eta: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Loss [n], acceptance [n] and gradient [n, m] of the loss by logits [n, m], for target laws [n, m].

    Args:
        eta: of the LK hybrid; None is soft cross entropy.
    """
    log_q = torch.log_softmax(logits, dim=-1)
    q = log_q.exp()
    loss = -(target * log_q).sum(-1)
    acceptance = torch.minimum(target, q).sum(-1)
    gradient = q * target.sum(-1, keepdim=True) - target
    if eta is not None:
        share = torch.exp(-eta * acceptance)
        below = q * (q < target)
        rise = below - q * below.sum(-1, keepdim=True)
        loss = share * loss + (1 - share) * (1 - acceptance)
        gradient = gradient.mul_(share[:, None]).sub_(rise * (1 - share)[:, None])
    return loss, acceptance, gradient


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, teacher: Tensor, rows: Tensor, weights: Tensor, eta: float | None) -> Any:
        total = hidden.new_zeros(())
        gradient = torch.empty_like(hidden)
        acceptance, hits = torch.empty(len(hidden)), torch.empty(len(hidden), dtype=torch.bool)
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            logits = (hidden[part].to(rows.dtype) @ rows.T).float()
            law = (teacher[part].to(rows.dtype) @ rows.T).float()
            hits[part] = logits.argmax(-1) == law.argmax(-1)
            loss, acceptance[part], by_logits = row_gradients(logits, law.softmax(-1), eta)
            total += (loss * weights[part]).sum()
            gradient[part] = (by_logits.mul_(weights[part, None]).to(rows.dtype) @ rows).to(hidden.dtype)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(acceptance, hits)
        return total, acceptance, hits

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * outputs[0], None, None, None, None


def law_loss(hidden: Tensor, teacher: Tensor, rows: Tensor, weights: Tensor, eta: float | None = None) -> LossParts:
    """Weighted sum over rows of the loss between the laws that the head's rows give to two hidden states.

    Args:
        hidden: [n, h] what the head reads; float32.
        teacher: [n, h] the target's hidden state after its final norm.
        rows: [m, h] the target's head rows of the draft vocabulary, in the number format of the product.
        weights: [n] of each row.
        eta: see `row_gradients`.
    """
    return LossParts(*_FusedLoss.apply(hidden, teacher, rows, weights, eta))  # type: ignore[misc]
