"""Replay of concurrently decoded texts: a drafter that remembers other requests does not know unfinished ones yet.

Not for the cost of rounds (`predict.py`).
"""

import time
from collections.abc import Sequence

from paceline.drafters.base import Drafter
from paceline.evaluation.advise.replay import Rounds, Text
from paceline.evaluation.advise.walk import GREEDY, Clock, Walk
from paceline.types import SamplingParams


def in_company(texts: Sequence[Text], at_once: int) -> list[list[int]]:
    """Groups of indices of texts that are decoded together: of one family, in the order of `paceline bench`."""
    waiting: dict[str, list[int]] = {}
    groups: list[list[int]] = []
    for number, text in enumerate(texts):
        own = waiting.setdefault(text.family, [])
        own.append(number)
        if len(own) == at_once:
            groups.append(waiting.pop(text.family))
    return groups + list(waiting.values())


def replay_in_company(
    drafter: Drafter, texts: Sequence[Text], most: int, at_once: int, params: SamplingParams = GREEDY,
    clock: Clock = time.perf_counter,
) -> list[Rounds]:  # fmt: skip
    """The rounds of every text when `at_once` texts of a family are decoded together; otherwise as `replay_lookup`."""
    found = [Rounds(0)] * len(texts)
    for group in in_company(texts, at_once):
        walks = {number: Walk(drafter, f"text-{number}", texts[number], most, params, clock=clock) for number in group}
        for walk in walks.values():
            walk.begin()
        while walks:
            for number in [number for number, walk in walks.items() if walk.is_over]:
                found[number] = walks.pop(number).end()
            trees = [walk.proposal() for walk in walks.values()]
            for walk, tree in zip(walks.values(), trees, strict=True):
                walk.play(tree)
    return found
