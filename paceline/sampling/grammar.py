"""`GrammarCursor`: what a grammar allows next, wherever a draft has got to; a library's grammars enter through it.

The target's law under a grammar is its law with forbidden tokens removed, then temperature and the rest, so whatever
rule verifies drafts stays exact. Not for compiling grammars (the engine has the tokenizer).
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from paceline.sampling.tree import ROOT_PARENT, TokenTree


class GrammarCursor(Protocol):
    """One request's place in its grammar: after its committed tokens, or a path of a draft beyond them."""

    @property
    def is_finished(self) -> bool:
        """The text is complete and can only end."""
        ...

    def allowed(self, path: Sequence[int] = ()) -> np.ndarray | None:
        """[vocab] bool: tokens that may follow `path`; None below a path that is impossible itself, or complete.

        No law below such a path is ever drawn from.
        """
        ...

    def allows(self, token: int, path: Sequence[int] = ()) -> bool:
        """Whether `allowed` is a mask after `path` and has `token` in it; cheaper than the mask."""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that must come next, or most likely do, since only one text is possible; may be empty."""
        ...

    def commit(self, token: int) -> None:
        """The text has grown by `token`. Raises ValueError when it may not."""
        ...


def cut(tree: TokenTree, cursor: GrammarCursor) -> TokenTree:
    """`tree` without nodes whose token is forbidden, and without what hangs below them.

    Exact for chosen (one-hot) trees, whose forbidden nodes have probability 0; others are returned as they are, because
    leaving out a drawn node by looking at it would change the law.
    """
    if tree.draw != "one_hot" or not len(tree):
        return tree
    number = {ROOT_PARENT: ROOT_PARENT}
    below: dict[int, np.ndarray | None] = {}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        if parent not in number:
            continue
        if parent not in below:
            below[parent] = cursor.allowed(() if parent == ROOT_PARENT else tree.tokens_to(parent))
        mask = below[parent]
        if mask is not None and token < len(mask) and mask[token]:
            number[node] = len(number) - 1
    if len(number) == len(tree) + 1:
        return tree
    kept = [node for node in range(len(tree)) if node in number]
    return TokenTree(tuple(tree.tokens[n] for n in kept), tuple(number[tree.parents[n]] for n in kept))
