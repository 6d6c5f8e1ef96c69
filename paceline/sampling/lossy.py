"""Rules that accept more by changing the output's law: never a default, and marked lossy wherever they appear.

At temperature 0 the law is one-hot, and rules relax different things: `lenient`, `lenient_greedy` and `top_k` compare
tokens by the law at temperature 1 (Leviathan et al. 2023, appendix A.5), `distance` compares ids. `typical` is exact
match there, as published, and `uniform_coin` never accepts a token of probability 0, so these two are exact at
temperature 0 (`rules.Rule.changes`).
Not the place for exact rules (`verify.py`, `block.py`, `coupled.py`), nor of what is known of each rule (`rules.py`).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.sampling.law import GreedyLaw, Law
from paceline.sampling.randomness import ROOT, Randomness
from paceline.sampling.tree import TokenTree
from paceline.sampling.verify import Choice, TargetLaws, Verdict, draft_law_of_trial, walk


def verify_lenient(
    tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int, *, lenience: float = 0.5
) -> Verdict:
    """Lossy: the p/q rule with the draft's probability scaled down by `lenience` l in (0, 1].

    Accepts with probability p / (l q) and recovers from norm(max(0, p - l q)). On a chain no token gets a probability
    above p / l; l = 1 is exact, l -> 0 accepts every draft. At temperature 0 this would relax nothing, so the rule is
    `verify_lenient_greedy` there. Leviathan et al. 2023, appendix A.5, for both. Other arguments as in `verify`.
    """
    if isinstance(target(ROOT), GreedyLaw):
        return verify_lenient_greedy(tree, target, randomness, position, lenience=lenience)

    def choose(tree: TokenTree, node: int, law: Law, randomness: Randomness, position: int) -> Choice:
        return _relaxed_level(tree, node, law, randomness, position, accept_scale=lenience, residual_scale=lenience)

    return walk(tree, target, randomness, position, choose)


def verify_uniform_coin(
    tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int, *, bound: float = 0.8
) -> Verdict:
    """Lossy: the p/q rule with the accept coin drawn from U(0, bound) instead of U(0, 1), bound in (0, 1].

    Accepts with probability p / (bound q) but recovers from norm(max(0, p - q)). bound = 1 is exact; at temperature 0
    every bound is, because tokens of probability 0 stay impossible. Other arguments as in `verify`.
    """

    def choose(tree: TokenTree, node: int, law: Law, randomness: Randomness, position: int) -> Choice:
        return _relaxed_level(tree, node, law, randomness, position, accept_scale=bound, residual_scale=1)

    return walk(tree, target, randomness, position, choose)


def verify_lenient_greedy(
    tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int, *, lenience: float = 0.5
) -> Verdict:
    """Lossy: greedy decoding that accepts children with p(x) >= `lenience` * max p and follows the most probable one.

    At temperature 0, p is the law at temperature 1 (`GreedyLaw.smooth`), because a one-hot law has no other candidates.
    At other temperatures p is the request's law, and decoding is greedy all the same. The token after the path is the
    target's most probable one; lenience = 1 is greedy decoding (except for exact ties). Leviathan et al. 2023, appendix
    A.5, which prints the inequality the wrong way round. Other arguments as in `verify`.
    """

    def stands(law: Law, tokens: list[int]) -> list[bool]:
        law = _before_zero(law)
        return [law.prob(token) / law.probs.max() >= lenience for token in tokens]

    return _walk_greedily(tree, target, stands)


def verify_top_k(
    tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int, *, k: float = 2
) -> Verdict:
    """Lossy: greedy decoding that accepts a child among the `k` most probable tokens; k = 1 is greedy decoding.

    Stern et al. 2018 (blockwise decoding), section 5.1. The law at temperature 0, the child that is followed and the
    token after the path are as in `verify_lenient_greedy`; other arguments as in `verify`.
    """

    def stands(law: Law, tokens: list[int]) -> list[bool]:
        best = set(_before_zero(law).top(int(k))[0])
        return [token in best for token in tokens]

    return _walk_greedily(tree, target, stands)


def verify_distance(
    tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int, *, distance: float = 2
) -> Verdict:
    """Lossy: greedy decoding that accepts a child whose id differs from the target's token by at most `distance`.

    For vocabularies with ordered ids, such as pixel intensities; 0 is greedy decoding. Stern et al. 2018, section 5.2.
    A token of probability 0 (at temperature 1, for greedy decoding) stays impossible: it may be forbidden. Other
    arguments as in `verify_top_k`.
    """

    def stands(law: Law, tokens: list[int]) -> list[bool]:
        before = _before_zero(law)
        return [abs(token - law.mode) <= distance and before.prob(token) > 0 for token in tokens]

    return _walk_greedily(tree, target, stands)


def verify_typical(
    tree: TokenTree,
    target: TargetLaws,
    randomness: Randomness,
    position: int,
    *,
    epsilon: float = 0.09,
    delta: float = 0.3,
) -> Verdict:
    """Lossy: typical acceptance (Cai et al. 2024, Medusa): accept children with p(x) > min(epsilon, delta exp(-H(p))).

    The longest accepted path is taken, on ties the most likely one under the target, followed by the target's most
    probable token; no randomness is used. At temperature 0 only the target's own token is accepted, so the rule is
    exact. Other arguments as in `verify`.
    """
    accepted: list[tuple[tuple[int, ...], Law, float]] = [((), target(ROOT), 0.0)]
    num_rejected = 0
    for path, law, log_prob in accepted:  # grows while it is walked
        threshold = typical_threshold(law, epsilon, delta)
        for child in tree.children(path[-1] if path else ROOT):
            prob = law.prob(tree.tokens[child])
            if prob <= threshold:
                num_rejected += 1
                continue
            accepted.append(((*path, child), target(child), log_prob + float(np.log(float(prob)))))
    path, law, _ = max(accepted, key=lambda entry: (len(entry[0]), entry[2]))
    kind = "recovered" if tree.children(path[-1] if path else ROOT) else "bonus" if path else "target"
    return Verdict(path, law.mode, kind, num_rejected)


def _walk_greedily(tree: TokenTree, target: TargetLaws, stands: Callable[[Law, list[int]], list[bool]]) -> Verdict:
    """Follow the most probable accepted child at each level; then emit the target's most probable token."""
    path: list[int] = []
    node = ROOT
    num_rejected = 0
    while True:
        law, children = target(node), tree.children(node)
        tokens = [tree.tokens[child] for child in children]
        good = [child for child, fine in zip(children, stands(law, tokens), strict=True) if fine] if children else []
        num_rejected += len(children) - len(good)
        if not good:
            break
        smooth = _before_zero(law)
        node = max(good, key=lambda child: (smooth.prob(tree.tokens[child]), -child))
        path.append(node)
    kind = "recovered" if children else "bonus" if path else "target"
    return Verdict(tuple(path), law.mode, kind, num_rejected)


def _before_zero(law: Law) -> Law:
    """`law`, or for a greedy law the one at temperature 1."""
    return law.smooth() if isinstance(law, GreedyLaw) else law


def typical_threshold(law: Law, epsilon: float = 0.09, delta: float = 0.3) -> float:
    """min(epsilon, delta * exp(-H)) with the entropy H in nats: the probability a typical token must exceed.

    Cai et al. 2024, section 3.3. Below H = ln(delta / epsilon) the first term is the minimum. Under a uniform law over
    n tokens all of them are accepted, since delta / n < 1 / n.
    """
    probs = law.probs.astype(np.float64)
    entropy = -(probs * np.log(probs)).sum()
    return float(min(epsilon, delta * np.exp(-entropy)))


def _relaxed_level(
    tree: TokenTree,
    node: int,
    law: Law,
    randomness: Randomness,
    position: int,
    *,
    accept_scale: Any,
    residual_scale: Any,
) -> Choice:
    """One level of the p/q rule with the draft's probability scaled in the accept test and in the residual."""
    tried: tuple[int, ...] = ()
    for child in tree.children(node):
        draft, draft_prob = draft_law_of_trial(tree, child, tried)
        prob = law.prob(tree.tokens[child])
        if prob > 0 and randomness.coin(prob / (accept_scale * draft_prob), position, child):
            return child, law, len(tried)
        law = law.residual(draft, draft_scale=residual_scale)
        tried += (tree.tokens[child],)
    return None, law, len(tried)
