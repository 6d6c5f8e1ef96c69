"""The greedy selection in batches: many replicas after each simulation, for clusters of hundreds of devices."""

import numpy as np

from paceline.placement.search.free_memory import Rooms
from paceline.placement.search.search import Groups, Score, Search


def batch_greedy(search: Search, skeleton: Groups, batch: int) -> Groups:
    """Fill `skeleton`: after each simulation the `batch` models with most unserved requests get a replica each.

    Each goes to the least busy group that has room for it, whose work is then taken to grow by what the model's
    unserved requests would take. With `batch` 1 that is `fast_greedy`.

    Args:
        search: scores the selections.
        skeleton: groups to fill; models they already hold stay.
        batch: replicas per simulation.

    Returns:
        The best selection seen on the way.
    """
    facts, best, best_score = search.facts, skeleton, Score(0, 0.0)
    rooms, full = Rooms(facts, skeleton), set[int]()
    while True:
        trial = search.examined(rooms.groups)
        if trial.score > best_score:
            best, best_score = rooms.groups, trial.score
        busy, added = trial.busy.copy(), 0
        for model in np.argsort(-trial.unserved, kind="stable").tolist():
            if added == batch or not trial.unserved[model]:
                break
            g = None if model in full else rooms.first(model, np.argsort(busy, kind="stable"))
            if g is None:
                full.add(model)
                continue
            rooms.add(g, model)
            busy[g] += trial.unserved[model] * facts.work_seconds(model, skeleton[g].parallel)
            added += 1
        if not added:
            return best
