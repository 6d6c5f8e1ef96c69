"""`Rooms`: groups that are being filled, and which of them may still have room for a model, all groups at a glance.

A quick look before `Facts.has_room`, which has the last word: where the mean stage is full, some stage is.
"""

from collections.abc import Sequence

import numpy as np

from paceline.placement.placement import Group
from paceline.placement.search.facts import Facts
from paceline.placement.search.search import Groups

NEARLY = 1e-9
"""Sums in another order may differ by this share; in doubt a group counts as one with room."""


FEW = 16
"""Groups that are looked at first when one is likely to have room."""

EVERY = slice(None)


class Rooms:
    """Groups that only grow.

    Args:
        facts: of the case.
        groups: those to fill; models they hold already count.
    """

    def __init__(self, facts: Facts, groups: Sequence[Group]) -> None:
        self._facts, self._groups = facts, list(groups)
        kinds = sorted({group.parallel for group in groups})
        self._needs = np.stack([facts.mean_weights(split) for split in kinds])
        self._kind = np.array([kinds.index(group.parallel) for group in groups])
        self._most = np.array([facts.budget(group.parallel) for group in groups]) * (1 + NEARLY)
        self._used = np.zeros(len(groups))
        self._apart = np.ones((len(groups), facts.num_models), bool)
        for g, group in enumerate(groups):
            for model in group.models:
                self._count(g, model)

    @property
    def groups(self) -> Groups:
        """As they stand."""
        return tuple(self._groups)

    def may_hold(self, model: int, part: slice = EVERY) -> np.ndarray:
        """bool [groups of `part`]: False where `model` certainly has no room, or is held already."""
        needs = self._needs[self._kind[part], model]
        return (self._used[part] + needs <= self._most[part]) & self._apart[part, model]

    def has(self, g: int, model: int) -> bool:
        """Whether group `g` has room for `model`."""
        return self._facts.has_room(self._groups[g], model)

    def add(self, g: int, model: int) -> None:
        """`model` joins group `g`."""
        self._groups[g] = self._groups[g].with_model(model)
        self._count(g, model)

    def first(self, model: int, order: np.ndarray) -> int | None:
        """The first group of `order` (int [groups]) that has room for `model`; None when none has."""
        for g in order[self.may_hold(model)[order]]:
            if self.has(int(g), model):
                return int(g)
        return None

    def next(self, model: int, start: int) -> int | None:
        """The first group from `start` on, round to the one before it, that has room for `model`; None when none has.

        Looks at ever more groups at once, so that one nearby is found without a look at all.
        """
        count = len(self._groups)
        for begin, end in ((start, count), (0, start)):
            size = FEW
            while begin < end:
                part = slice(begin, min(begin + size, end))
                for g in np.flatnonzero(self.may_hold(model, part)).tolist():
                    if self.has(begin + g, model):
                        return begin + g
                begin, size = part.stop, 2 * size
        return None

    def _count(self, g: int, model: int) -> None:
        self._used[g] += self._needs[self._kind[g], model]
        self._apart[g, model] = False
