"""Simulator-guided greedy selection of models with a beam (AlpaServe, Algorithm 1)."""

from collections.abc import Iterator

from paceline.placement.search.search import Groups, Score, Search, canonical


def beam_greedy(search: Search, skeleton: Groups, width: int = 1) -> Groups:
    """Fill `skeleton` one replica at a time, every possible addition simulated; the best selection ever seen.

    Costs models x groups x replicas x `width` simulations.

    Args:
        search: scores the selections.
        skeleton: groups to fill; models they already hold stay.
        width: selections that go on to the next round (k in the paper).
    """
    best, best_score = skeleton, search.scored(skeleton)
    beam = [skeleton]
    while beam:
        scored = _distinct(search, (grown for selection in beam for grown in _additions(search, selection)))
        scored.sort(key=lambda pair: pair[0], reverse=True)
        beam = [selection for _, selection in scored[:width]]
        if scored and scored[0][0] > best_score:
            best_score, best = scored[0]
    return best


def _distinct(search: Search, selections: Iterator[Groups]) -> list[tuple[Score, Groups]]:
    return [(search.scored(selection), selection) for selection in dict.fromkeys(selections)]


def _additions(search: Search, groups: Groups) -> Iterator[Groups]:
    """Every selection with one replica more."""
    for i in _unlike(groups):
        for model in range(search.facts.num_models):
            if search.facts.has_room(groups[i], model):
                yield canonical((*groups[:i], groups[i].with_model(model), *groups[i + 1 :]))


def _unlike(groups: Groups) -> list[int]:
    """One index for every distinct group: adding to its twin gives the same selection."""
    return [i for i, group in enumerate(groups) if group not in groups[:i]]
