"""`GrammarCursor`: the interface to a grammar library: which tokens may come next, also along a drafted path.

The target's law under a grammar has forbidden tokens removed before temperature and truncation, so every verification
rule stays exact. Not for compiling grammars (the engine has the tokenizer).
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from paceline.sampling.randomness import ROOT
from paceline.sampling.tree import TokenTree


class GrammarCursor(Protocol):
    """One request's state in its grammar, after its committed tokens and optionally a drafted path."""

    @property
    def is_finished(self) -> bool:
        """Whether the text is complete, so that only an end token may follow."""
        ...

    def allowed(self, path: Sequence[int] = ()) -> np.ndarray | None:
        """[vocab] bool: tokens that may follow `path`; None when `path` itself is forbidden, or complete.

        Nothing is ever drawn after such a path.
        """
        ...

    def allows(self, token: int, path: Sequence[int] = ()) -> bool:
        """Whether `token` may follow `path`: as `allowed`, but cheaper than the whole mask."""
        ...

    def forced(self) -> Sequence[int]:
        """Likely next tokens where the grammar allows only one text (its tokenisation may differ); may be empty."""
        ...

    def commit(self, token: int) -> None:
        """Advance by a committed token. Raises ValueError when the grammar forbids it."""
        ...


def cut(tree: TokenTree, cursor: GrammarCursor) -> TokenTree:
    """`tree` without nodes whose token the grammar forbids, and without their descendants.

    Exact for deterministic (one-hot) trees, whose forbidden nodes have target probability 0. Drawn trees are returned
    unchanged, because removing a drawn node depending on its token would change the output's law.
    """
    if tree.draw != "one_hot" or not len(tree):
        return tree
    number = {ROOT: ROOT}
    below: dict[int, np.ndarray | None] = {}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        if parent not in number:
            continue
        if parent not in below:
            below[parent] = cursor.allowed(() if parent == ROOT else tree.tokens_to(parent))
        mask = below[parent]
        if mask is not None and token < len(mask) and mask[token]:
            number[node] = len(number) - 1
    if len(number) == len(tree) + 1:
        return tree
    kept = [node for node in range(len(tree)) if node in number]
    return TokenTree(tuple(tree.tokens[n] for n in kept), tuple(number[tree.parents[n]] for n in kept))
