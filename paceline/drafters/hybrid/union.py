"""`by_chance`: merge two deterministic proposals into one tree with nodes in order of acceptance probability.

Only for deterministic proposals, whose nodes may be dropped depending on their token; for drawn ones see
`sampling.tree.union`. Not for choosing the drafter (`choice.py`) or the number of nodes (`step.py`).
"""

from collections.abc import Sequence

from paceline.sampling.tree import TokenTree

Path = tuple[int, ...]


def by_chance(
    drafted: TokenTree, drafted_chances: Sequence[float], free: TokenTree, free_chances: Sequence[float]
) -> TokenTree:
    """A model's chain and a free proposal as one tree, most likely nodes first.

    Nodes in both have probability 1 - (1 - p)(1 - q). Nodes only in the free proposal have its probability times that
    of a rejection of the chain's first token. A node's probability is at most its parent's.

    Args:
        drafted, drafted_chances: the model's proposal, not empty, and its nodes' acceptance probabilities.
        free, free_chances: the same of the free proposal.
    """
    chances: dict[Path, float] = {drafted.tokens_to(node): chance for node, chance in enumerate(drafted_chances)}
    doubt = 1 - drafted_chances[0]
    for node, chance in enumerate(free_chances):
        path = free.tokens_to(node)
        chances[path] = 1 - (1 - chance) * (1 - chances[path]) if path in chances else chance * doubt
    for path in sorted(chances, key=len):
        chances[path] = min(chances[path], chances.get(path[:-1], 1.0))
    ordered = sorted(chances, key=lambda path: (-chances[path], len(path)))
    number = {path: node for node, path in enumerate(ordered)} | {(): -1}
    tokens, parents = tuple([path[-1] for path in ordered]), tuple([number[path[:-1]] for path in ordered])
    return TokenTree(tokens, parents, chances=tuple([chances[path] for path in ordered]))
