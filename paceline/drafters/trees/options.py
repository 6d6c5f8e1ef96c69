"""From a user's options to a tree shape: names, defaults and validation."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Literal

from paceline.drafters.trees.blocks import Blocks
from paceline.drafters.trees.drawn import Drawn, Expansion
from paceline.drafters.trees.dynamic import Dynamic
from paceline.drafters.trees.growth import TreeShape
from paceline.drafters.trees.ranked import Ranked, closed, paths_of
from paceline.errors import InvalidParameter
from paceline.speculation.traits import DEFAULT_NUM_DRAFT_TOKENS

TreeName = Literal["chain", "static", "dynamic", "sampled", "blocks"]

_OPTIONS: dict[TreeName, tuple[str, ...]] = {
    "chain": (),
    "static": ("paths", "expansion"),
    "dynamic": ("topk", "depth"),
    "sampled": ("expansion", "replacement"),
    "blocks": ("topk", "depth"),
}

_DEFAULT_EXPANSION = (2, 1, 1, 1)

CHAIN = TreeShape(Drawn, DEFAULT_NUM_DRAFT_TOKENS, branches=False)
"""A chain of drawn tokens, as long as the budget."""


def tree_shape(
    tree: TreeName = "chain",
    *,
    expansion: Expansion | None = None,
    paths: Sequence[Sequence[int]] | None = None,
    topk: int | None = None,
    depth: int | None = None,
    replacement: bool | None = None,
    block_tokens: int = 1,
) -> TreeShape:
    """The shape that a drafter's options describe; a smaller node budget reduces it.

    Args:
        tree: ``chain``; ``static``, the same ranks at every step; ``dynamic``, by confidence; ``sampled``, draws;
            ``blocks``, the most probable blocks of what one pass names (Falcon's).
        expansion: children per node, level by level, of a static or sampled tree; default (2, 1, 1, 1).
        paths: of a static tree, e.g. [(0,), (0, 0), (1,)], the most useful first; instead of an expansion.
        topk: of a dynamic tree: nodes expanded per level, and children of each; default 4. Of blocks: how many are
            kept per pass; default 3.
        depth: of a dynamic tree: its levels; default 6. Of blocks: passes; default 2.
        replacement: of a sampled tree: True draws siblings independently, False (the default) never twice the same.
        block_tokens: tokens that a pass of the drafter names.

    Raises:
        InvalidParameter: no such tree, an option of another tree, or a value out of range.
    """
    given = {"expansion": expansion, "paths": paths, "topk": topk, "depth": depth, "replacement": replacement}
    _check_names(tree, [name for name, value in given.items() if value is not None])
    if tree == "chain":
        return CHAIN
    if tree == "dynamic":
        grow = partial(Dynamic, topk=checked_count("topk", topk, 4), depth=checked_count("depth", depth, 6))
        return TreeShape(grow, DEFAULT_NUM_DRAFT_TOKENS)
    if tree == "blocks":
        width, passes = checked_count("topk", topk, 3), checked_count("depth", depth, 2)
        grow = partial(Blocks, size=block_tokens, width=width, passes=passes)
        return TreeShape(grow, width * passes * block_tokens)
    if tree == "static" and paths is not None:
        known = checked_paths(paths)
        return TreeShape(partial(Ranked, paths=known), len(known))
    widths = checked_expansion(_DEFAULT_EXPANSION if expansion is None else expansion)
    if tree == "static":
        return TreeShape(partial(Ranked, paths=paths_of(widths)), num_nodes(widths))
    return TreeShape(partial(Drawn, expansions=[widths], replacement=bool(replacement)), num_nodes(widths))


def num_nodes(expansion: Expansion) -> int:
    """Nodes of a full tree: <2, 2, 1> has 2 + 4 + 4."""
    return sum(accumulate(expansion, mul))


def checked_expansion(expansion: Expansion) -> tuple[int, ...]:
    """`expansion` as a tuple. Raises InvalidParameter unless it is a non-empty list of whole numbers from 1 on."""
    if isinstance(expansion, (str, int)) or not expansion or not all(_is_count(width, 1) for width in expansion):
        problem = f"{expansion!r} is no list of whole numbers from 1 on"
        raise InvalidParameter("expansion", problem, "give the children per node for each level, e.g. [2, 1, 1, 1]")
    return tuple(expansion)


def checked_paths(paths: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """`paths` with all their prefixes. Raises InvalidParameter for invalid ranks."""
    good = not isinstance(paths, str) and len(paths) and all(isinstance(path, (list, tuple)) for path in paths)
    if not good or not all(path and all(_is_count(rank, 0) for rank in path) for path in paths):
        problem = f"{paths!r} is no list of lists of ranks from 0 on"
        raise InvalidParameter("paths", problem, "give e.g. [[0], [0, 0], [1]]")
    return closed(paths)


def checked_count(field: str, value: int | None, default: int) -> int:
    """`value` or the default. Raises InvalidParameter unless it is a whole number from 1 on."""
    if value is None:
        return default
    if not _is_count(value, 1):
        raise InvalidParameter(field, f"{value!r} is no whole number from 1 on", "raise it or leave it out")
    return value


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check_names(tree: str, given: Sequence[str]) -> None:
    if tree not in _OPTIONS:
        raise InvalidParameter("tree", f"{tree!r} is unknown", f"use one of {', '.join(_OPTIONS)}")
    for name in given:
        if name not in _OPTIONS[tree]:
            owners = " or ".join(repr(owner) for owner, names in _OPTIONS.items() if name in names)
            raise InvalidParameter(name, f"is no option of a {tree} tree", f"leave it out, or use tree={owners}")
    if {"paths", "expansion"} <= set(given):
        raise InvalidParameter("paths", "given together with expansion", "give one of the two")
