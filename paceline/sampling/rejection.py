"""Rejection sampling: the textbook rule (von Neumann 1951), exact, and a baseline for the p/q rule.

Not the place for the p/q rule (`verify.py`), which tests the same drafts and accepts at least as many.
"""

from paceline.sampling.law import Law
from paceline.sampling.randomness import Randomness
from paceline.sampling.tree import TokenTree
from paceline.sampling.verify import Choice, TargetLaws, Verdict, draft_law_of_trial, walk


def verify_rejection_sampling(tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int) -> Verdict:
    """Accept a token drawn from q with probability p(x) / (M q(x)), M = max p / q; if none is accepted, draw from p.

    The non-iterative variant: the textbook draws until it accepts, here the number of tries is that of the siblings.
    An accepted token and the draw after a rejection both follow p, so the output does: p(x) / M + (1 - 1 / M) p(x). One
    try is accepted with probability 1 / M (`Law.rejection_acceptance`), at most that of the p/q rule. M is infinite,
    and nothing is accepted, where the draft's law lacks a token of the target's: after truncation (top-k, top-p) often,
    and for a deterministic proposal at every temperature above 0. At temperature 0 it is exact match.

    von Neumann 1951; Leviathan et al. 2023, appendix A.2. The whole of both laws is read at every node. Arguments and
    errors as in `verify`.
    """
    return walk(tree, target, randomness, position, _accept_under_the_envelope)


def _accept_under_the_envelope(tree: TokenTree, node: int, law: Law, randomness: Randomness, position: int) -> Choice:
    """One level: each sibling is tested against the target's law, which a rejection leaves as it is."""
    tried: tuple[int, ...] = ()
    for child in tree.children(node):
        draft, draft_prob = draft_law_of_trial(tree, child, tried)
        chance = law.rejection_acceptance(draft) * law.prob(tree.tokens[child]) / draft_prob
        if chance > 0 and randomness.coin(chance, position, child):
            return child, law, len(tried)
        tried += (tree.tokens[child],)
    return None, law, len(tried)
