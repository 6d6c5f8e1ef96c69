"""Lenience: accepting more than the exact rule does, and what it does to the law. Lossy, and named so.

A lenience l in (0, 1] scales the draft's probability down before the test (Leviathan et al. 2023, appendix A.5): a
token is accepted with probability min(1, p / (l q)), and a recovered one is drawn from norm(max(0, p - l q)). l = 1 is
the exact rule. Not the place for the rule itself (`sampling/lossy.py`).
"""

import numpy as np

from paceline.errors import InvalidParameter
from paceline.theory.checks import Number, Probs, as_law, as_pair


def lenient_acceptance(target_probs: Probs, draft_probs: Probs, lenience: Number) -> Number:
    """alpha_l = sum_x min(p(x) / l, q(x)); grows as `lenience` falls, and reaches 1 where l q <= p everywhere."""
    target, draft = as_pair(target_probs, draft_probs)
    return np.minimum(lenience_ceiling(target, lenience), draft).sum()


def lenient_law(target_probs: Probs, draft_probs: Probs, lenience: Number) -> np.ndarray:
    """[vocab] the law actually emitted: accepted draws plus the recovered ones.

    min(p / l, q) + (1 - alpha_l) norm(max(0, p - l q)). The target's own law at l = 1, the draft's as l goes to 0.
    """
    target, draft = as_pair(target_probs, draft_probs)
    accepted = np.minimum(lenience_ceiling(target, lenience), draft)
    left = np.maximum(target - lenience * draft, 0)
    total = left.sum()
    return accepted + (1 - accepted.sum()) * left / total if total else accepted


def lenience_ceiling(target_probs: Probs, lenience: Number) -> np.ndarray:
    """[vocab] p / l: upper bound on the probability of each emitted token.

    The residual has mass 1 - l alpha_l, so a token gets at most
    min(p / l, q) + (1 - alpha_l) / (1 - l alpha_l) max(0, p - l q), and that factor is at most 1 / l.
    """
    _check_lenience(lenience)
    return as_law("target_probs", target_probs) / lenience


def greedy_lenient_tokens(target_probs: Probs, lenience: Number) -> np.ndarray:
    """Ids of the tokens greedy decoding with lenience accepts: p(x) >= l max p, ascending.

    The paper prints this inequality the other way round, which would accept the improbable tokens. Under greedy
    decoding a one-hot law leaves nothing to be lenient about, so `target_probs` is the law at temperature 1.
    """
    _check_lenience(lenience)
    law = as_law("target_probs", target_probs)
    return np.flatnonzero(law >= lenience * law.max())


def _check_lenience(lenience: Number) -> None:
    if not 0 < lenience <= 1:
        raise InvalidParameter("lenience", f"{lenience} is not in (0, 1]", "use 1 for the exact rule")
