"""`by_chance`: chosen proposals of two drafters as one tree, its nodes in order of how likely they are to be accepted.

For proposals that were chosen, whose nodes may be left out by what they are; drawn ones are united by
`sampling.tree.union`. Not for deciding who drafts (`hybrid.py`) or how many nodes are verified (`hybrid_step.py`).
"""

from collections.abc import Sequence

from paceline.sampling.tree import TokenTree

Path = tuple[int, ...]


def by_chance(
    drafted: TokenTree, drafted_chances: Sequence[float], free: TokenTree, free_chances: Sequence[float]
) -> TokenTree:
    """A model's chain and a free proposal in one tree, most likely nodes first.

    Both say of a node that it will be accepted with some chance. Where they agree, either may be right; what the free
    proposal says against the chain counts as far as the chain's first token is expected to fail.

    Args:
        drafted, drafted_chances: the model's proposal, not empty, and the chances of its nodes.
        free, free_chances: the other one's.
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
