"""The best static tree for a number of nodes, from the accuracies of the i-th most likely token at each depth.

Medusa's construction (Cai et al. 2024): the value of a path (i_1, .., i_d) is the product of the accuracies of its
ranks, the expected number of accepted tokens is the sum of the values, and taking the most valuable nodes one by one is
optimal, because a node is worth no more than its parent nor than its sibling of the rank above. Products take depths to
be independent. Not the place for measuring accuracies (`evaluation/accuracy.py`).
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from paceline.errors import InvalidParameter
from paceline.theory.checks import Number, check_count, check_rate

RankPath = tuple[int, ...]
"""Ranks from the root down, 0 the first guess."""

_TOLERANCE = 1e-9  # accuracies that were measured by counting and divided may sum to a little more than 1


def marginal_accuracies(cumulative: Sequence[Number]) -> list[Number]:
    """Accuracy of each single guess, from top-1, top-2, ... accuracies of the same depth.

    Published tables are often cumulative; used as marginal ones, they would count every guess several times.

    Raises:
        InvalidParameter: the row decreases, or leaves [0, 1].
    """
    before: list[Number] = [0, *cumulative[:-1]]
    marginal = [top - less for top, less in zip(cumulative, before, strict=True)]
    _check_row("cumulative", marginal)
    return marginal


def best_tree(accuracies: Sequence[Sequence[Number]], num_nodes: int) -> list[RankPath]:
    """The `num_nodes` paths with the largest sum of values, the most valuable first; fewer when there are no more.

    Args:
        accuracies: ``accuracies[d][i]`` is the chance that guess i at depth d + 1 is right (marginal, not cumulative),
            given that the path above is; ranks and depths beyond it are not used.
        num_nodes: nodes of the tree.

    Every beginning of the result is the best tree of its own size. Ties go to the shallower, then to the lower rank.

    Raises:
        InvalidParameter: a rate outside [0, 1], a row that sums to more than 1, or a negative budget.
    """
    check_count("num_nodes", num_nodes)
    ordered = [_by_value(row) for row in accuracies]
    best: list[RankPath] = []
    waiting: list[tuple[Number, int, RankPath, RankPath]] = []
    _offer(waiting, ordered, (0,), 1)
    while waiting and len(best) < num_nodes:
        negative, _, path, places = heappop(waiting)
        best.append(path)
        above = _value(ordered, places[:-1])
        _offer(waiting, ordered, (*places, 0), -negative)
        _offer(waiting, ordered, (*places[:-1], places[-1] + 1), above)
    return best


def expected_tree_tokens(accuracies: Sequence[Sequence[Number]], paths: Sequence[RankPath]) -> Number:
    """Expected tokens per target pass with the tree of `paths`: 1 + the sum of the values of its nodes.

    Raises:
        InvalidParameter: rates as in `best_tree`, or a path that leads out of `accuracies`.
    """
    for row in accuracies:
        _check_row("accuracies", row)
    total: Number = 1
    for path in paths:
        value: Number = 1
        for depth, rank in enumerate(path):
            if depth >= len(accuracies) or not 0 <= rank < len(accuracies[depth]):
                raise InvalidParameter("paths", f"{path} has no accuracy at depth {depth + 1}", "measure deeper")
            value = value * accuracies[depth][rank]
        total = total + value
    return total


def _by_value(row: Sequence[Number]) -> list[tuple[Number, int]]:
    """(accuracy, rank), the best first: measured accuracies need not fall with the rank."""
    _check_row("accuracies", row)
    return sorted(((accuracy, rank) for rank, accuracy in enumerate(row)), key=lambda pair: (-pair[0], pair[1]))


def _check_row(field: str, row: Sequence[Number]) -> None:
    for accuracy in row:
        check_rate(field, accuracy)
    if sum(row) > 1 + _TOLERANCE:
        raise InvalidParameter(
            field, f"a row sums to {float(sum(row)):.4g}", "give marginal rates, not cumulative ones"
        )


def _value(ordered: Sequence[Sequence[tuple[Number, int]]], places: RankPath) -> Number:
    value: Number = 1
    for depth, place in enumerate(places):
        value = value * ordered[depth][place][0]
    return value


def _offer(waiting: list, ordered: Sequence[Sequence[tuple[Number, int]]], places: RankPath, above: Number) -> None:
    """Put the node at `places` (one per depth, counted by value) among the candidates; worthless nodes are left out."""
    depth, place = len(places) - 1, places[-1]
    if depth < len(ordered) and place < len(ordered[depth]) and ordered[depth][place][0] > 0:
        value = above * ordered[depth][place][0]
        path = tuple(ordered[level][each][1] for level, each in enumerate(places))
        heappush(waiting, (-value, len(places), path, places))
