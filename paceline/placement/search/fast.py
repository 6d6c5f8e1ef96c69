"""The fast variant of the greedy selection: one simulation per round instead of one per possible addition."""

from collections.abc import Sequence

from paceline.placement.search.search import Groups, Score, Search, Trial


def fast_greedy(search: Search, skeleton: Groups, models: Sequence[int] | None = None) -> Groups:
    """Fill `skeleton`: the model with most unserved requests joins the least utilised group that has room for it.

    A model that no group has room for is passed over for the next. One simulation per replica; returns the best
    selection seen on the way, which need not be the last.

    Args:
        search: scores the selections.
        skeleton: groups to fill; models they already hold stay.
        models: those to choose from; None for all.
    """
    models = range(search.facts.num_models) if models is None else models
    rooms = {(g, model) for g in range(len(skeleton)) for model in models}
    groups, best, best_score = skeleton, skeleton, Score(0, 0.0)
    while True:
        trial = search.examined(groups)
        if trial.score > best_score:
            best, best_score = groups, trial.score
        grown = _add_one(search, groups, trial, models, rooms)
        if grown is None:
            return best
        groups = grown


def _add_one(
    search: Search, groups: Groups, trial: Trial, models: Sequence[int], rooms: set[tuple[int, int]]
) -> Groups | None:
    """`groups` with the most useful replica more; None when nothing more fits, or all deadlines are met.

    What turns out not to fit is struck off `rooms`, (group, model) pairs: groups only grow.
    """
    idlest = sorted(range(len(groups)), key=lambda g: trial.busy[g])
    for model in sorted(models, key=lambda m: -trial.unserved[m]):
        if search.case.has_slo and not trial.unserved[model]:
            return None
        for g in idlest:
            if (g, model) not in rooms:
                continue
            if search.facts.has_room(groups[g], model):
                return (*groups[:g], groups[g].with_model(model), *groups[g + 1 :])
            rooms.discard((g, model))
    return None
