"""Rules that follow the target's own draws down the tree: the output is, token for token, that of plain sampling.

Both rules share one walk and are exact for any draft, because the draft decides only how many tokens a pass emits.
They differ in how the drafter draws: with the target's noise (coupled) or its own (sample and match). Not for the draws
of drafters (`draw_node` in `drafters/base.py`).
"""

from typing import Any

import numpy as np

from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT, Randomness
from paceline.sampling.tree import TokenTree
from paceline.sampling.verify import TargetLaws, Verdict


def verify_coupled(tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int) -> Verdict:
    """Accept a drafted token when it equals the target's own draw, where the drafter draws with the same noise.

    Daliri et al. 2024. Drafts are drawn under ("target", ROOT) at their position. With a seed the output is that of
    plain sampling, bit for bit, whatever the drafter, the draft length or the batch. A token is accepted with
    `match_probability`. Arguments as in `verify`.
    """
    return _follow_the_target(tree, target, randomness, position)


def verify_sample_and_match(tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int) -> Verdict:
    """The naive baseline: draw the target's token with independent noise; accept the child with that token, if any.

    Exact for any draft; with a seed the output is that of plain sampling. A child drawn from q is accepted with
    probability sum_x p(x) q(x), at most that of the p/q rule (Miao et al. 2024, theorem 4.3). Arguments as in `verify`.
    """
    return _follow_the_target(tree, target, randomness, position)


def match_probability(target: Law, draft: Law) -> Any:
    """Probability that `target` and `draft` pick the same token in exponential races with the same noise.

    sum_x 1 / sum_y max(p_y / p_x, q_y / q_x) over tokens x of both laws; at least (1 - TV) / (1 + TV)
    (Daliri et al. 2024). Sorting by p / q turns the inner sum into two running totals, so the cost is k log k.
    """
    tokens = np.union1d(target.tokens, draft.tokens)
    ours, theirs = target.on(tokens), draft.on(tokens)
    order = sorted(range(len(tokens)), key=lambda i: (theirs[i] == 0, ours[i] / theirs[i] if theirs[i] else 0))
    ours, theirs = ours[order], theirs[order]
    above = ours[::-1].cumsum()[::-1]
    below = theirs.cumsum() - theirs
    shared = (ours > 0) & (theirs > 0)
    return (1 / (above[shared] / ours[shared] + below[shared] / theirs[shared])).sum()


def _follow_the_target(tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int) -> Verdict:
    """Draw the target's token at each node and step to the child that carries it, until none does."""
    path: list[int] = []
    node = ROOT
    num_rejected = 0
    while True:
        token = randomness.draw(target(node), position, "target", ROOT)
        children = tree.children(node)
        carried = [tree.tokens[child] for child in children]
        if token not in carried:
            break
        place = carried.index(token)
        node = children[place]
        num_rejected += place
        path.append(node)
        position += 1
    if not children:
        return Verdict(tuple(path), token, "bonus" if path else "target", num_rejected)
    return Verdict(tuple(path), token, "recovered", num_rejected + len(children))
