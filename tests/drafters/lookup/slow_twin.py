"""The chances of `grow.py` and the sequences of `training/memory.py`, written down plainly."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import exp

from paceline.drafters.lookup.blended import trust
from paceline.drafters.lookup.grow import LONGEST_MATCH

UNKNOWN = 1e-4


def followers(texts: Sequence[Sequence[int]], end: Sequence[int]) -> dict[int, Counter[int]]:
    """By length of the match, what followed the last tokens of `end` in `texts`."""
    found: dict[int, Counter[int]] = {}
    for length in range(1, LONGEST_MATCH + 1):
        tail = list(end[len(end) - length :])
        if len(tail) < length:
            break
        for text in texts:
            for at in range(length, len(text)):
                if list(text[at - length : at]) == tail:
                    found.setdefault(length, Counter())[text[at]] += 1
    return found


def chances(
    own: Sequence[int], path: Sequence[int], past: Sequence[Sequence[int]], memory: Mapping[int, float] | None = None
) -> dict[int, float]:
    """Chance of every token that any evidence names after `own` and `path`."""
    end = [*own, *path]
    known = dict(memory or {})
    evidence = [followers(past, end), followers([own], end)]
    for found in evidence:
        for counts in found.values():
            for token in counts:
                known.setdefault(token, UNKNOWN)
    for found, trusted in zip(evidence, trust(1)[::-1], strict=True):
        for length, counts in sorted(found.items()):
            total, weight = sum(counts.values()), trusted[length]
            known = {token: (counts[token] + weight * p) / (total + weight) for token, p in known.items()}
    return known


def raced(known: Mapping[int, float], noise: Callable[[int], float], temperature: float) -> dict[int, float]:
    """Chances given the noise of every token's draw."""
    weights = {token: p / noise(token) ** (0.65 * temperature) for token, p in known.items()}
    rest = max(1 - sum(known.values()), 1e-3) ** 0.3 * exp(1.2 * temperature**3)
    return {token: weight / (rest + sum(weights.values())) for token, weight in weights.items()}


def check_tree(
    paths: Sequence[tuple[int, ...]], own: Sequence[int], past: Sequence[Sequence[int]], budget: int, least: float,
    branches: bool, noise: Callable[[int, int], float] | None = None, temperature: float = 0.0,
) -> list[float]:  # fmt: skip
    """Assert that every node of a tree was the most probable one left; their chances to be reached.

    Args:
        noise: of a token at a position, where it is known.
    """
    offers: dict[tuple[int, ...], float] = {}
    above, reached, found = (), 1.0, []
    for path in [*paths, None]:
        if path is not None or len(paths) < budget:
            known = chances(own, above, past)
            if noise is not None:
                known = raced(known, partial(noise, len(own) + len(above)), temperature)
            after = {(*above, token): reached * p for token, p in known.items()}
            fresh = {one: chance for one, chance in after.items() if chance >= least}
            offers = {**offers, **fresh} if branches else fresh
        if path is None:
            assert len(paths) == budget or not offers
            return found
        assert offers[path] >= max(offers.values()) - 1e-9
        above, reached = path, offers.pop(path)
        found.append(reached)
    return found
