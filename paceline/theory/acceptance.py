"""Acceptance rates, and the expected number of tokens per pass.

Laws are dense rows [vocab]; `alpha` is the acceptance rate, `num_draft_tokens` the speculation length (gamma or K in
the papers). Everything works on floats and on Fractions. Not the place for times (`speedup.py`), for several drafts per
position (`candidates.py`) or for rules that change the law (`lenience.py`).
"""

from collections.abc import Sequence

import numpy as np

from paceline.errors import InvalidParameter
from paceline.theory.checks import Number, Probs, as_pair, check_count, check_rate

_BISECTIONS = 60  # leaves an interval of 2^-60, below a float's own spacing near 1


def acceptance_rate(target_probs: Probs, draft_probs: Probs) -> Number:
    """sum_x min(p(x), q(x)) = 1 - TV(p, q): the probability that a token drawn from the draft is accepted.

    Leviathan et al. 2023, theorem 3.5 and corollary 3.6. Averaged over prefixes it is their alpha.
    """
    target, draft = as_pair(target_probs, draft_probs)
    return np.minimum(target, draft).sum()


def rejection_sampling_acceptance(target_probs: Probs, draft_probs: Probs) -> Number:
    """1 / M with M = max_x p(x) / q(x): the probability that rejection sampling accepts one draw from the draft.

    Never above `acceptance_rate`; zero when the draft misses a token of the target. Repeated until a draw is accepted,
    as in the textbook, it takes M draws in the mean. The rule is `sampling.rejection`. von Neumann 1951; Leviathan et
    al. 2023, appendix A.2.
    """
    target, draft = as_pair(target_probs, draft_probs)
    support = target > 0
    return (draft[support] / target[support]).min()


def coupled_acceptance(target_probs: Probs, draft_probs: Probs) -> Number:
    """sum_x 1 / sum_y max(p_y / p_x, q_y / q_x): probability of equal picks in exponential races with the same noise.

    x runs over tokens in both supports. This is the definition, quadratic in the vocabulary; the fast version, which
    sorts by p / q, is `sampling.coupled.match_probability`. Daliri et al. 2024 (drafter-invariant speculative
    decoding).
    """
    target, draft = as_pair(target_probs, draft_probs)
    shared = np.flatnonzero((target > 0) & (draft > 0))
    return sum(1 / np.maximum(target / target[x], draft / draft[x]).sum() for x in shared)


def coupled_acceptance_floor(target_probs: Probs, draft_probs: Probs) -> Number:
    """(1 - TV) / (1 + TV): lower bound on the acceptance rate of the coupled rule (Daliri et al. 2024)."""
    accepted = acceptance_rate(target_probs, draft_probs)
    return accepted / (2 - accepted)


def estimate_acceptance_rate(num_accepted: int, num_rejected: int) -> float | None:
    """accepted / (accepted + rejected), None when nothing was tested.

    Tokens after the first rejection were never tested, so accepted / drafted would be too low.
    """
    check_count("num_accepted", num_accepted)
    check_count("num_rejected", num_rejected)
    tested = num_accepted + num_rejected
    return num_accepted / tested if tested else None


def expected_tokens(alpha: Number, num_draft_tokens: int) -> Number:
    """(1 - alpha^(g + 1)) / (1 - alpha): expected tokens per target pass, between 1 and g + 1.

    Leviathan et al. 2023, equation 1; assumes independent acceptances with probability `alpha`. Computed as the sum 1 +
    alpha + ... + alpha^g, which needs no special case at alpha = 1 and is accurate near it.
    """
    check_rate("alpha", alpha)
    check_count("num_draft_tokens", num_draft_tokens)
    return expected_tokens_by_position([alpha] * num_draft_tokens)


def expected_tokens_by_position(alphas: Sequence[Number]) -> Number:
    """1 + a_1 + a_1 a_2 + ...: expected tokens per pass for conditional acceptance rates a_i by position.

    a_i is the probability that the i-th drafted token is accepted, given that those before it were.
    """
    total: Number = 1
    for alpha in reversed(alphas):
        check_rate("alphas", alpha)
        total = 1 + alpha * total
    return total


def accepted_count_law(alpha: Number, num_draft_tokens: int) -> np.ndarray:
    """[g + 1] probabilities that 0 .. g drafted tokens are accepted: a geometric distribution truncated at g.

    Entry n is alpha^n (1 - alpha) for n < g and alpha^g for n = g; the pass emits n + 1 tokens. Leviathan et al. 2023,
    section 3.1.
    """
    check_rate("alpha", alpha)
    check_count("num_draft_tokens", num_draft_tokens)
    stopped = [alpha**n * (1 - alpha) for n in range(num_draft_tokens)]
    return np.array([*stopped, alpha**num_draft_tokens])


def acceptance_rate_for(tokens_per_pass: Number, num_draft_tokens: int) -> float:
    """The alpha at which `expected_tokens` equals `tokens_per_pass`.

    Converts a measured acceptance length into a rate, or a cost in plain passes into the break-even rate.

    Raises:
        InvalidParameter: `tokens_per_pass` is not in [1, num_draft_tokens + 1].
    """
    check_count("num_draft_tokens", num_draft_tokens, least=1)
    if not 1 <= tokens_per_pass <= num_draft_tokens + 1:
        problem = f"{tokens_per_pass} is not in [1, {num_draft_tokens + 1}]"
        raise InvalidParameter("tokens_per_pass", problem, "a pass emits one token more than it accepts")
    if tokens_per_pass == 1:
        return 0.0  # bisection would end beside it
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if expected_tokens(middle, num_draft_tokens) < tokens_per_pass:
            low = middle
        else:
            high = middle
    return high
