"""Acceptance with several candidates for one position: the gain of a tree over a chain.

Each function gives the probability that one of k children of a node is accepted, under the exact rule for the way they
were drawn. Exact on Fractions, so that small cases can be checked by hand. Not the place for the rules themselves
(`sampling/verify.py`).
"""

from collections.abc import Iterable

import numpy as np

from paceline.errors import InvalidParameter
from paceline.theory.checks import Number, Probs, as_law, as_pair, check_count, check_positive, check_rate

_MAX_BRANCHES = 200_000  # about ten seconds of Fractions


def iid_acceptance(target_probs: Probs, draft_probs: Probs, num_children: int) -> Number:
    """Probability that one of `num_children` independent draws from the draft is accepted (SpecInfer's multi-step
    rule).

    After a rejection the target becomes norm(max(0, p - q)), whichever token was rejected, so the probability that all
    are rejected is a product. Miao et al. 2024, algorithm 2.
    """
    target, draft = as_pair(target_probs, draft_probs)
    check_count("num_children", num_children)
    refused: Number = 1
    for _ in range(num_children):
        refused = refused * (1 - np.minimum(target, draft).sum())
        target = _residual(target, draft)
    return 1 - refused


def distinct_acceptance(target_probs: Probs, draft_probs: Probs, num_children: int) -> Number:
    """Probability that one of `num_children` draws without replacement is accepted.

    Each is drawn from the draft law with the earlier ones removed, and tested against that law (Miao et al. 2024's rule
    with q renormalised). Sums over every sequence of rejected draws, so the cost is about vocab^(num_children - 1).
    There are no more children than tokens in the draft's support.

    Raises:
        InvalidParameter: the sum has too many terms.
    """
    target, draft = as_pair(target_probs, draft_probs)
    check_count("num_children", num_children)
    num_children = min(num_children, int((draft > 0).sum()))
    branches = float((draft > 0).sum()) ** max(num_children - 1, 0)
    if branches > _MAX_BRANCHES:
        problem = f"{num_children} distinct children of {len(draft)} tokens need {branches:.0e} terms"
        raise InvalidParameter("num_children", problem, "use fewer children or a smaller vocabulary")
    return 1 - _all_refused(target, draft, num_children)


def sample_match_acceptance(target_probs: Probs, draft_probs: Probs, num_children: int) -> Number:
    """1 - sum_x p(x) (1 - q(x))^k: the target's own pick is among `num_children` independent draws.

    Never above `iid_acceptance`: Miao et al. 2024, theorem 4.3, where it is called naive sampling.
    """
    target, draft = as_pair(target_probs, draft_probs)
    check_count("num_children", num_children)
    return 1 - (target * (1 - draft) ** num_children).sum()


def one_hot_acceptance(target_probs: Probs, children: Iterable[int]) -> Number:
    """sum of p over the distinct token ids `children`: acceptance of deterministic proposals (n-gram, top-k trees)."""
    target = as_law("target_probs", target_probs)
    return target[sorted(set(children))].sum()


def lookahead_tokens(alpha: Number, num_draft_tokens: int, num_candidates: int) -> Number:
    """g + 1 - sum_{i=1..g} (1 - alpha^i)^b: tokens per pass with b independent candidates of g tokens each.

    One candidate gives `expected_tokens`. Fu et al. 2024 (lookahead decoding).
    """
    check_rate("alpha", alpha)
    check_count("num_draft_tokens", num_draft_tokens)
    check_count("num_candidates", num_candidates)
    missed = sum((1 - alpha**i) ** num_candidates for i in range(1, num_draft_tokens + 1))
    return num_draft_tokens + 1 - missed


def lookahead_speedup(tokens_per_hit: Number, passes_per_hit: Number) -> Number:
    """(f - 1 + E) / f: of every f passes f - 1 emit one token and one emits E. Fu et al. 2024."""
    check_positive("tokens_per_hit", tokens_per_hit)
    if not passes_per_hit >= 1:
        raise InvalidParameter("passes_per_hit", f"{passes_per_hit} is less than 1", "one pass hits at most once")
    return (passes_per_hit - 1 + tokens_per_hit) / passes_per_hit


def _residual(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """norm(max(0, p - q)); `target` itself when that is zero, since a rejection is then impossible."""
    left = np.maximum(target - draft, 0)
    total = left.sum()
    return left / total if total else target


def _all_refused(target: np.ndarray, draft: np.ndarray, num_children: int) -> Number:
    """Probability that `num_children` draws without replacement are all rejected; as many tokens must have q > 0."""
    if num_children == 0:
        return 1
    refused = np.maximum(draft - target, 0)  # drawn and refused, token by token
    if num_children == 1:
        return refused.sum()
    residual = _residual(target, draft)
    total: Number = 0
    for token in np.flatnonzero(refused):
        rest = draft.copy()
        rest[token] = 0
        total = total + refused[token] * _all_refused(residual, rest / rest.sum(), num_children - 1)
    return total
