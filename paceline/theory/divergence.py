"""Distances between two laws, and what they say about acceptance.

Total variation and Leviathan's D_LK are exact on Fractions; the logarithmic divergences return floats, in nats. Not the
place for training losses, which need gradients.
"""

import math

import numpy as np

from paceline.theory.checks import Number, Probs, as_pair, check_cost, check_rate


def total_variation(target_probs: Probs, draft_probs: Probs) -> Number:
    """TV(p, q) = sum_x |p(x) - q(x)| / 2, in [0, 1]; the acceptance rate is 1 - TV."""
    target, draft = as_pair(target_probs, draft_probs)
    return abs(target - draft).sum() / 2


def lk_divergence(target_probs: Probs, draft_probs: Probs) -> Number:
    """D_LK(p, q) = sum_x |p(x) - (p(x) + q(x)) / 2|; equals TV (Leviathan et al. 2023, definition 3.2, lemma 3.3)."""
    target, draft = as_pair(target_probs, draft_probs)
    return abs(target - (target + draft) / 2).sum()


def kl(target_probs: Probs, draft_probs: Probs) -> float:
    """KL(p || q) = sum_x p(x) ln(p(x) / q(x)) in nats; infinite when the draft misses a token of the target.

    With the target first this is the forward divergence; swap the arguments for the reverse one.
    """
    target, draft = as_pair(target_probs, draft_probs)
    support = target > 0
    p, q = target[support].astype(np.float64), draft[support].astype(np.float64)
    if not q.all():
        return math.inf
    return float((p * np.log(p / q)).sum())


def jensen_shannon(target_probs: Probs, draft_probs: Probs, weight: float = 0.5) -> float:
    """b KL(p || m) + (1 - b) KL(q || m) with m = b p + (1 - b) q and b = `weight` in [0, 1], in nats.

    The generalised form that DistillSpec trains with (Zhou et al. 2024); b = 1/2 is the symmetric one, at most ln 2.
    """
    check_rate("weight", weight)
    target, draft = (law.astype(np.float64) for law in as_pair(target_probs, draft_probs))
    mixture = weight * target + (1 - weight) * draft
    parts = [(weight, target), (1 - weight, draft)]
    return float(sum(share * kl(law, mixture) for share, law in parts if share))


def acceptance_floor(kl_nats: float) -> float:
    """The least acceptance rate that a KL divergence (either direction) still allows.

    1 - min(sqrt(KL / 2), sqrt(1 - exp(-KL))): Pinsker's bound on TV while KL is small, Bretagnolle and Huber's beyond.
    """
    if kl_nats == math.inf:
        return 0.0
    check_cost("kl_nats", kl_nats)
    return 1.0 - min(math.sqrt(kl_nats / 2), math.sqrt(-math.expm1(-kl_nats)))
