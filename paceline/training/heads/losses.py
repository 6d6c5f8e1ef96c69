"""Losses of draft heads against the target's law, fused with the matrix product of the output head.

q is the head's law over its own vocabulary, p the target's over the same tokens, renormalised. So the acceptance
probability below is too high where the head's vocabulary leaves out a part of the target's law; evaluations use the
whole vocabulary (`evaluate.py`). The rows of the output head are frozen, so the backward pass only needs the gradient
by the hidden state. It is computed together with the loss, a few rows at a time, and no logits are kept.

- soft cross entropy: -sum p log q.
- LK hybrid (arXiv 2602.23881): lam * soft cross entropy + (1 - lam) * (1 - a), with the acceptance probability
  a = sum min(p, q) and lam = exp(-eta * a), which is constant in the backward pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

CHUNK = 256
"""Rows whose logits are in memory at a time."""


class Read(NamedTuple):
    """Inputs of the logits of n positions: hidden @ rows.T, plus the second product where there is one.

    Attributes:
        hidden: [n, h] states, which the output head's frozen rows [m, h] multiply.
        added: inputs [n, r] and trained rows [m, r] of a second product that is added; None for none.
    """

    hidden: Tensor
    added: tuple[Tensor, Tensor] | None = None


class OutputHead(NamedTuple):
    """What makes a model's logits of its states after the final norm.

    Attributes:
        rows: [m, h], in the number format of the product.
        scale: factor on logits.
        softcap: bound of logits, as softcap * tanh(logits / softcap); 0 for none.
    """

    rows: Tensor
    scale: float = 1.0
    softcap: float = 0.0

    def logits(self, states: Tensor) -> Tensor:
        """[n, m] float32 of states [n, h]."""
        found = (states.to(self.rows.dtype) @ self.rows.T).float()
        if self.scale != 1.0:
            found *= self.scale
        return found.div_(self.softcap).tanh_().mul_(self.softcap) if self.softcap else found


Criterion = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Maps the head's logits and the target's laws, [n, m] each, to the loss [n], the acceptance probability [n] and the
gradient [n, m] of the loss by the logits."""


class LossParts(NamedTuple):
    """Sum of weighted losses (a scalar with a gradient), acceptance probability [n] of each row, and whether its most
    probable token is the same for head and target [n]."""

    loss: Tensor
    acceptance: Tensor
    hits: Tensor


def row_gradients(logits: Tensor, target: Tensor, eta: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Loss [n], acceptance probability [n] and gradient [n, m] by the logits [n, m], for target laws [n, m].

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


@dataclass(frozen=True, slots=True)
class LawCriterion:
    """`row_gradients` as a `Criterion`; on a CPU one compiled loop computes it (`law_rows.py`).

    Attributes:
        eta: of the LK hybrid; None is soft cross entropy.
        above_entropy: subtract the target's entropy from the loss; soft cross entropy becomes KL(p || q).
    """

    eta: float | None = None
    above_entropy: bool = False

    def __call__(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss, acceptance, gradient = row_gradients(logits, target, self.eta)
        return loss - torch.special.entr(target).sum(-1) if self.above_entropy else loss, acceptance, gradient


class _Graded(NamedTuple):
    """For n positions: weighted sum of losses, acceptance probability [n], hits [n], gradient [n, m] by the logits."""

    loss: Tensor
    acceptance: Tensor
    hits: Tensor
    by_logits: Tensor


def _graded(logits: Tensor, target: Tensor, weights: Tensor, criterion: "Criterion") -> _Graded:
    """The criterion for logits [n, m] of the head and of the target; both may be overwritten."""
    if isinstance(criterion, LawCriterion) and logits.device.type == "cpu":
        from paceline.training.heads.law_rows import compiled_grade  # Numba, which other devices do not need

        losses, entropies, acceptance = (torch.empty(len(logits)) for _ in range(3))
        hits, eta = torch.empty(len(logits), dtype=torch.bool), -1.0 if criterion.eta is None else criterion.eta
        arrays = [one.contiguous().numpy() for one in (logits, target, weights)]
        found = (one.numpy() for one in (losses, entropies, acceptance, hits))
        compiled_grade()(*arrays, np.float32(eta), *found)
        losses -= entropies if criterion.above_entropy else 0.0
        return _Graded((losses * weights).sum(), acceptance, hits, logits)
    hits = logits.argmax(-1) == target.argmax(-1)
    losses, acceptance, by_logits = criterion(logits, target.softmax(-1))
    return _Graded((losses * weights).sum(), acceptance, hits, by_logits.mul_(weights[:, None]))


def logits_of(read: Read, rows: Tensor) -> Tensor:
    """[n, m] float32 logits; products are taken in the number format of `rows`."""
    logits = OutputHead(rows).logits(read.hidden)
    if read.added is not None:
        inputs, weights = read.added
        logits += (inputs.to(rows.dtype) @ weights.to(rows.dtype).T).float()
    return logits


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, inputs: Tensor | None, added: Tensor | None, teacher: Tensor, rows: Tensor,
                weights: Tensor, criterion: "Criterion", teacher_head: OutputHead) -> Any:  # fmt: skip
        pair = None if inputs is None or added is None else (inputs, added)
        total, acceptance, hits = (
            hidden.new_zeros(()),
            hidden.new_empty(len(hidden), dtype=torch.float32),
            hidden.new_empty(len(hidden), dtype=torch.bool),
        )
        gradients = [torch.empty_like(hidden), *(torch.zeros_like(one) for one in pair or ())]
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            logits = logits_of(Read(hidden[part], pair and (pair[0][part], pair[1])), rows)
            wanted = teacher_head.logits(teacher[part])
            loss, acceptance[part], hits[part], by_logits = _graded(logits, wanted, weights[part], criterion)
            total += loss
            by_logits = by_logits.to(rows.dtype)
            gradients[0][part] = (by_logits @ rows).to(hidden.dtype)
            if pair is not None:
                gradients[1][part] = (by_logits @ pair[1].to(rows.dtype)).to(hidden.dtype)
                gradients[2] += (by_logits.T @ pair[0][part].to(rows.dtype)).float()
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(acceptance, hits)
        return total, acceptance, hits

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        gradients = [one * outputs[0] for one in ctx.saved_tensors]
        return (*gradients, *[None] * (8 - len(gradients)))


def law_loss(read: Read, teacher: Tensor, rows: Tensor, weights: Tensor, eta: float | None = None,
             teacher_head: OutputHead | None = None) -> LossParts:  # fmt: skip
    """Weighted sum over positions of the loss of the head's law against the target's.

    Args:
        teacher: [n, h] the target's hidden states after its final norm.
        rows: [m, h] rows of the target's output head for the draft vocabulary, in the number format of the product.
        weights: [n] of each position.
        eta: see `row_gradients`.
        teacher_head: see `fused_loss`.
    """
    return fused_loss(read, teacher, rows, weights, LawCriterion(eta), teacher_head)


def fused_loss(read: Read, teacher: Tensor, rows: Tensor, weights: Tensor, criterion: Criterion,
               teacher_head: OutputHead | None = None) -> LossParts:  # fmt: skip
    """As `law_loss`, for any criterion.

    Args:
        teacher_head: what makes logits of `teacher`; None for `rows`.
    """
    inputs, added = read.added or (None, None)
    theirs = OutputHead(rows) if teacher_head is None else teacher_head
    return LossParts(*_FusedLoss.apply(read.hidden, inputs, added, teacher, rows, weights, criterion, theirs))  # type: ignore[misc]
