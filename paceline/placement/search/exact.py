"""The best placement by enumeration, for cases small enough: the judge of the searches that do not enumerate."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from math import comb, prod

from paceline.errors import InvalidParameter
from paceline.placement.placement import Group
from paceline.placement.profile import ParallelConfig
from paceline.placement.search.annealing import order_groups
from paceline.placement.search.bounds import Bounds, may_hold
from paceline.placement.search.facts import Facts
from paceline.placement.search.partitions import skeletons
from paceline.placement.search.search import Groups, Search

MAX_PLACEMENTS = 200_000
MAX_MODELS, MAX_SKELETONS = 12, 2000


def count_placements(facts: Facts) -> float:
    """How many placements enumeration would look at; infinite when even counting them takes too long."""
    if facts.num_models > MAX_MODELS:
        return float("inf")
    kinds = {split: len(may_hold(facts, split)) for split in facts.splits}
    total = 0
    for number, splits in enumerate(skeletons(facts)):
        if number > MAX_SKELETONS:
            return float("inf")
        total += prod(comb(kinds[split] + many - 1, many) for split, many in Counter(splits).items())
    return total


def enumerate_all(search: Search) -> Groups:
    """The best of all placements, up to the order of groups, which is then improved by swaps.

    Groups of splits that cannot serve more than the best so far are passed over (`Bounds`), and a simulation stops as
    soon as it has lost too many requests.

    Raises:
        InvalidParameter: there are more than `MAX_PLACEMENTS`.
    """
    total = count_placements(search.facts)
    if total > MAX_PLACEMENTS:
        problem = f"this case has more than {MAX_PLACEMENTS} placements"
        raise InvalidParameter("policy", problem, "use auto, or fewer devices and models")
    search.step = "enumeration"
    bounds, sets = Bounds(search.facts), {split: may_hold(search.facts, split) for split in search.facts.splits}
    promising = sorted(skeletons(search.facts), key=bounds.served, reverse=True)
    for splits in promising:
        if bounds.served(splits) < search.best_score.served:
            break
        for groups in _placements(splits, sets):
            search.score(groups, at_least=search.best_score.served)
    return order_groups(search, search.best)


def _placements(
    splits: tuple[ParallelConfig, ...], sets: dict[ParallelConfig, list[tuple[int, ...]]]
) -> Iterator[Groups]:
    """Every choice of models for groups of these splits; groups alike in split are not told apart."""
    alike = [combinations_with_replacement(sets[split], many) for split, many in sorted(Counter(splits).items())]
    for choice in product(*alike):
        yield tuple(
            Group(split, models) for split, chosen in zip(sorted(set(splits)), choice, strict=True) for models in chosen
        )
