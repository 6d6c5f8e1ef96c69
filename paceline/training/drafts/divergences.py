"""Divergences between the target's law p and a draft's law q, each with its gradient by the draft's logits.

For a divergence D with derivatives g = dD/dq and q = softmax(z): dD/dz = q (g - sum q g).

- ``forward_kl``: sum p log(p / q). Gradient q - p.
- ``reverse_kl``: sum q log(q / p).
- ``jsd``: BETA sum p log(p / m) + (1 - BETA) sum q log(q / m), m = BETA p + (1 - BETA) q.
- ``tvd``: sum |p - q| / 2 = 1 - sum min(p, q): 1 minus the acceptance probability.
- ``tvd++``: TVD's gradient as a policy gradient, E over x ~ q of -A(x) d log q(x). The reward is 1 where q < p, and the
  advantage A is normalised by the reward's mean and deviation under q (Goel et al. 2024, "Direct alignment of draft
  model for speculative decoding", there over samples, here exactly at each position). The reported loss is the TVD.

The first four are those of DistillSpec (Zhou et al. 2024, section 4). Not for heads' cross entropy (`heads/losses.py`).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from paceline.errors import InvalidParameter
from paceline.training.heads.losses import Criterion, LawCriterion

BETA = 0.5
_LEAST_DEVIATION = 1e-3
"""Least divisor of TVD++'s advantage: a smaller deviation means that both laws are almost the same."""

_Distance = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def criterion_of(name: str) -> Criterion:
    """The divergence of that name, for `fused_loss`. Raises InvalidParameter for an unknown name."""
    if name not in DIVERGENCES:
        problem = f"{name!r} is no distance of two laws"
        raise InvalidParameter("divergence", problem, f"choose one of: {', '.join(DIVERGENCES)}")
    if name == "forward_kl":
        return LawCriterion(above_entropy=True)  # its gradient is that of soft cross entropy, which is compiled
    distance = _OTHERS[name]

    def criterion(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_q = torch.log_softmax(logits, dim=-1)
        loss, gradient = distance(target, log_q, log_q.exp())
        return loss, torch.minimum(target, log_q.exp()).sum(-1), gradient

    return criterion


def _by_logits(q: Tensor, by_q: Tensor) -> Tensor:
    return q * (by_q - (q * by_q).sum(-1, keepdim=True))


def _log(p: Tensor) -> Tensor:
    return p.clamp(min=torch.finfo(p.dtype).tiny).log()


def _reverse_kl(p: Tensor, log_q: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    by_q = log_q - _log(p)
    return (q * by_q).sum(-1), _by_logits(q, by_q)


def _jsd(p: Tensor, log_q: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    log_m = _log(BETA * p + (1 - BETA) * q)
    loss = BETA * (p * (_log(p) - log_m)).sum(-1) + (1 - BETA) * (q * (log_q - log_m)).sum(-1)
    return loss, _by_logits(q, (1 - BETA) * (log_q - log_m))


def _tvd(p: Tensor, log_q: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    return 0.5 * (p - q).abs().sum(-1), _by_logits(q, -(q < p).to(q.dtype))


def _tvd_plus(p: Tensor, log_q: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    loss, gradient = _tvd(p, log_q, q)
    mean = (q * (q < p)).sum(-1, keepdim=True)
    deviation = (mean * (1 - mean)).clamp(min=_LEAST_DEVIATION**2).sqrt()
    return loss, gradient / deviation


_OTHERS: dict[str, _Distance] = {"reverse_kl": _reverse_kl, "jsd": _jsd, "tvd": _tvd, "tvd++": _tvd_plus}
DIVERGENCES = ("forward_kl", *_OTHERS)
"""Names of all divergences."""
