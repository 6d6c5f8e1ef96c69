"""The p/q rule: exact verification of chains and trees, drawn or deterministic.

Pure: no model, no cache, no clock. The target's laws are requested node by node, so only visited nodes are warped.
Not the place for rules that trade exactness for length (`lossy.py`) or for the other exact ones (`block.py`,
`coupled.py`).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from paceline.errors import InvalidParameter
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT, Randomness
from paceline.sampling.tree import TokenTree

TargetLaws = Callable[[int], Law]
"""Node number (ROOT for the last committed token) to the target's warped law of the token after it."""


class Verdict(NamedTuple):
    """The result of verifying a draft.

    Attributes:
        path: accepted nodes from the root down.
        token: the target's own token after them.
        kind: ``target`` when nothing was drafted, ``bonus`` after a fully accepted path, ``recovered`` after a
            rejection.
        num_rejected: nodes tested and rejected.
    """

    path: tuple[int, ...]
    token: int
    kind: Literal["target", "bonus", "recovered"]
    num_rejected: int


Choice = tuple[int | None, Law, int]
"""(accepted child or None, the law that a recovered token is drawn from, number of children rejected)."""

ChildTest = Callable[[TokenTree, int, Law, Randomness, int], Choice]
"""(tree, node, target law after it, randomness, position of its children) to the `Choice` among its children."""


def verify(tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int) -> Verdict:
    """The p/q rule (speculative sampling; multi-round on trees): the emitted text follows the target's law exactly.

    Args:
        tree: the draft. A deterministic child counts as drawn from a one-hot law: accepted with p(x), else removed.
        target: the target's warped law after a node.
        randomness: coins and draws of the request.
        position: absolute position of the first drafted level, the root's plus 1.

    Raises:
        InvalidParameter: a drafted token has probability 0 under its draft law.

    Leviathan et al. 2023, algorithm 1, for chains; Miao et al. 2024 (SpecInfer), multi-step speculative sampling, for
    trees. SpecInfer tries siblings in uniformly random order. Node order is exact too, because every round is exact for
    any sibling that is selected without looking at its token.
    """
    return walk(tree, target, randomness, position, _accept_or_recover)


def walk(
    tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int, choose_child: ChildTest
) -> Verdict:
    """Descend from the root while `choose_child` accepts a child; then draw the target's own token.

    Shared by the rules that differ only in how one level is tested.
    """
    path: list[int] = []
    node = ROOT
    num_rejected = 0
    while tree.children(node):
        child, rest, refused = choose_child(tree, node, target(node), randomness, position)
        num_rejected += refused
        if child is None:
            return Verdict(tuple(path), randomness.draw(rest, position, "target", ROOT), "recovered", num_rejected)
        path.append(child)
        node = child
        position += 1
    token = randomness.draw(target(node), position, "target", ROOT)
    return Verdict(tuple(path), token, "bonus" if path else "target", num_rejected)


def draft_law_of_trial(tree: TokenTree, node: int, tried: tuple[int, ...]) -> tuple[Law, Any]:
    """The law that `node` was drawn from given the siblings tried before it, and its token's probability there.

    Raises:
        InvalidParameter: that probability is 0, so the node cannot have been drawn from it.
    """
    law = tree.draft_law(node)
    if tree.draw == "without_replacement":
        law = law.without(*tried)
    prob = law.prob(tree.tokens[node])
    if not prob > 0:
        raise InvalidParameter(
            "draft_laws",
            f"node {node} carries token {tree.tokens[node]}, impossible under its draft law",
            "give the law the token was really drawn from, after warping",
        )
    return law, prob


def _accept_or_recover(tree: TokenTree, node: int, law: Law, randomness: Randomness, position: int) -> Choice:
    """One level of the p/q rule: each sibling is tested against the residual of the target's law after those before."""
    tried: tuple[int, ...] = ()
    for child in tree.children(node):
        draft, draft_prob = draft_law_of_trial(tree, child, tried)
        prob = law.prob(tree.tokens[child])
        if prob > 0 and randomness.coin(prob / draft_prob, position, child):
            return child, law, len(tried)
        law = law.residual(draft)
        tried += (tree.tokens[child],)
    return None, law, len(tried)
