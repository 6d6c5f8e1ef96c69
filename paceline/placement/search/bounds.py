"""Upper bounds on what groups of given splits can serve, whichever models they hold: they spare simulations."""

from collections.abc import Sequence

import numpy as np

from paceline.placement.placement import Group
from paceline.placement.profile import ParallelConfig
from paceline.placement.search.facts import Facts

NUM_WINDOWS = 200

LEAST_WORK = 1e-30
"""Seconds; stages so short that the simulator's numbers round them to 0 count as this long."""


class Bounds:
    """Bounds by throughput, window by window of the workload, so that a burst beyond the cluster's power counts.

    A request that arrives in a window of L seconds and meets its deadline keeps the stages of its group busy within
    L + slo seconds. Per group the mean stage can therefore work off no more than that; the most requests are served
    when those with the least work go first. A model without a split that meets its deadline serves nothing.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        workload, num_models = facts.case.workload, facts.num_models
        self._slack = max(model.slo for model in facts.case.models)
        first, last = (workload.times[0], workload.times[-1]) if workload.num_requests else (0.0, 0.0)
        self._length = max((last - first) / NUM_WINDOWS, 4 * self._slack, 1e-9)
        window = ((workload.times - first) // self._length).astype(np.int64)
        counts = np.zeros((int(window.max(initial=0)) + 1, num_models))
        np.add.at(counts, (window, workload.models), 1)
        self._counts = counts

    def served(self, splits: Sequence[ParallelConfig]) -> float:
        """No more requests than this can be served from groups of these splits; where they differ in worth, that of
        all requests."""
        if self._facts.goal is not None:
            return self._facts.goal.most
        kinds = sorted(set(splits))
        work = np.array([self._least_work(model, kinds) for model in range(self._facts.num_models)])
        order = np.argsort(work)
        order = order[np.isfinite(work[order])]
        counts, work = self._counts[:, order], np.maximum(work[order], LEAST_WORK)
        before = np.cumsum(counts * work, axis=1) - counts * work
        capacity = len(splits) * (self._length + self._slack)
        served = np.clip((capacity - before) / work, 0, counts)
        return int(np.floor(served.sum(axis=1) + 1e-9).sum())

    def _least_work(self, model: int, kinds: Sequence[ParallelConfig]) -> float:
        """Seconds that a request keeps the mean stage of a group busy, in the split where that is least."""
        useful = [split for split in kinds if self._facts.is_useful(model, split)]
        return min((self._facts.busy_seconds(model, split) / split.pipeline for split in useful), default=float("inf"))


def may_hold(facts: Facts, split: ParallelConfig) -> list[tuple[int, ...]]:
    """Every set of models that a group of this split could hold with use, the empty one included."""
    sets: list[Group] = [Group(split)]
    for model in range(facts.num_models):
        sets += [group.with_model(model) for group in sets if facts.has_room(group, model)]
    return [group.models for group in sets]
