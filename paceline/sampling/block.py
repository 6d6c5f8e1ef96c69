"""Block verification: an exact rule for chains that never accepts fewer tokens than the p/q rule.

Not the place for trees: no exact block rule for them is known here, and `verify.py` takes them.
"""

from typing import Any

from paceline.errors import InvalidParameter
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT, Randomness
from paceline.sampling.tree import TokenTree
from paceline.sampling.verify import TargetLaws, Verdict


def verify_block(tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int) -> Verdict:
    """Accept the longest prefix that the joint test allows (Sun et al. 2024, block verification, algorithm 2).

    With weight_0 = 1 and weight_i = min(weight_{i-1} * p(x_i) / q(x_i), 1), a prefix of i tokens is kept with the
    probability for which P(at least i accepted | x_1..x_i) = weight_i. The longest kept prefix is accepted, and the
    next token is drawn from norm(max(0, weight_i * p - q)). A token that the p/q rule would reject can thus be accepted
    because of a good successor. Every level is visited unless a weight is 0, so more laws are warped than under p/q.

    Args:
        tree: a chain, drawn or deterministic.
        target, randomness, position: as in `verify`.

    Raises:
        InvalidParameter: the tree is no chain, or a token is impossible under its draft law.
    """
    if not tree.is_chain:
        raise InvalidParameter("tree", "block verification takes chains, this tree branches", "use the rule 'p/q'")
    law, weight = target(ROOT), 1
    kept = (0, law, weight)
    for node in range(len(tree)):
        weight = _next_weight(tree, node, law, weight)
        if weight == 0:
            break
        if node + 1 == len(tree):  # the last node: kept with probability `weight`
            if randomness.coin(weight, position + node, node):
                kept = (node + 1, target(node), weight)
            break
        law = target(node)
        if randomness.coin(_keep_chance(tree, node, law, weight), position + node, node):
            kept = (node + 1, law, weight)
    num_accepted, law, weight = kept
    path = tuple(range(num_accepted))
    if num_accepted == len(tree):
        token = randomness.draw(law, position + num_accepted, "target", ROOT)
        return Verdict(path, token, "bonus" if path else "target", 0)
    law = law.residual(tree.draft_law(num_accepted), scale=weight)
    return Verdict(path, randomness.draw(law, position + num_accepted, "target", ROOT), "recovered", 1)


def _next_weight(tree: TokenTree, node: int, law: Law, weight: Any) -> Any:
    """min(weight * p(x) / q(x), 1) for the token x of `node`."""
    draft_prob = tree.draft_law(node).prob(tree.tokens[node])
    if not draft_prob > 0:
        problem = f"node {node} carries token {tree.tokens[node]}, impossible under its draft law"
        raise InvalidParameter("draft_laws", problem, "give the law the token was really drawn from, after warping")
    return min(weight * law.prob(tree.tokens[node]) / draft_prob, 1)


def _keep_chance(tree: TokenTree, node: int, law: Law, weight: Any) -> Any:
    """Probability h of keeping the prefix that ends at `node` (not the last); `law` is the target's law after it.

    h = e / (e + 1 - weight) with e = sum_x max(0, weight * p(x) - q(x)). Where both e and 1 - weight are 0, a longer
    prefix is kept with probability 1, so the value does not matter.
    """
    excess = law.excess(tree.draft_law(node + 1), scale=weight).sum()
    total = excess + 1 - weight
    return excess / total if total > 0 else 1
