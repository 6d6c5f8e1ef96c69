"""The fast variant of the greedy selection: one simulation per round instead of one per possible addition."""

from collections.abc import Sequence

import numpy as np

from paceline.placement.search.free_memory import Rooms
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
    choice = np.arange(search.facts.num_models) if models is None else np.array(models, np.int64)
    best, best_score = skeleton, Score(0, 0.0)
    rooms, full = Rooms(search.facts, skeleton), set[int]()
    while True:
        trial = search.examined(rooms.groups)
        if trial.score > best_score:
            best, best_score = rooms.groups, trial.score
        if not _add_one(search, rooms, trial, choice, full):
            return best


def _add_one(search: Search, rooms: Rooms, trial: Trial, models: np.ndarray, full: set[int]) -> bool:
    """The most useful replica joins; False when nothing more fits, or all deadlines are met.

    A model that no group has room for is put into `full`: groups only grow.
    """
    idlest = np.argsort(trial.busy, kind="stable")
    for model in models[np.argsort(-trial.unserved[models], kind="stable")].tolist():
        if search.case.has_slo and not trial.unserved[model]:
            return False
        g = None if model in full else rooms.first(model, idlest)
        if g is not None:
            rooms.add(g, model)
            return True
        full.add(model)
    return False
