"""Enumeration of what surrounds the greedy selection (AlpaServe, Algorithm 2): buckets, shares of devices, groups."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice, pairwise
from random import Random

from paceline.placement.profile import ParallelConfig
from paceline.placement.search.facts import Facts
from paceline.placement.search.search import Search

Splits = tuple[ParallelConfig, ...]

LATENCY_GAP = 0.38
"""Models whose latencies differ by more than this share do not start in one bucket: the fast wait for the slow."""

SHARE_GAPS = (1.0, 0.5, 0.3, 0.2, 0.1)
FINEST_SHARE = 8
"""Devices are shared out in units of this part of the cluster, or one by one when there are fewer."""

MAX_SHARES = 100
"""Splits of the devices over buckets are pruned until fewer than this many remain (the paper's thresholds)."""


def buckets(facts: Facts, gap: float = LATENCY_GAP) -> list[tuple[int, ...]]:
    """Placeable models by latency of a lone request; a bucket begins where it grows by more than `gap`."""
    ordered = sorted(facts.placeable, key=lambda m: (lone(facts, m), m))
    found: list[list[int]] = []
    for model in ordered:
        if found and lone(facts, model) <= lone(facts, found[-1][0]) * (1 + gap):
            found[-1].append(model)
        else:
            found.append([model])
    return [tuple(sorted(bucket)) for bucket in found]


def bucket_partitions(found: Sequence[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Every way to join neighbouring buckets, from all in one to each by itself."""
    for cuts in range(len(found)):
        for at in combinations(range(1, len(found)), cuts):
            edges = [0, *at, len(found)]
            yield [tuple(sorted(sum(found[a:b], ()))) for a, b in pairwise(edges)]


def device_shares(facts: Facts, parts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Devices for each bucket, at least one, summing to all; those far from the buckets' share of work are pruned."""
    work = [sum(facts.requests_of[m] * lone(facts, m) for m in part) for part in parts]
    total = sum(work) or 1.0
    unit = max(1, facts.num_devices // FINEST_SHARE)
    shares = [tuple(count * unit for count in s) for s in _compositions(facts.num_devices // unit, len(parts))]
    busiest, left = work.index(max(work)), facts.num_devices % unit
    shares = [(*share[:busiest], share[busiest] + left, *share[busiest + 1 :]) for share in shares]
    for gap in SHARE_GAPS:
        near = [s for s in shares if _distance(s, [w / total for w in work]) <= gap]
        if not near:
            break
        shares = near
        if len(shares) < MAX_SHARES:
            break
    return shares


def uniform_skeletons(facts: Facts, num_devices: int) -> Iterator[Splits]:
    """As many equal groups as fit, for every split; devices left over are filled with ever smaller pipelines."""
    for split in facts.splits:
        count, left = divmod(num_devices, split.num_devices)
        if count:
            yield (split,) * count + remainder(facts, left)


def remainder(facts: Facts, num_devices: int) -> Splits:
    """The fewest pipelines without tensor parallelism that use `num_devices`, or as many of them as splits allow."""
    pipelines = [split for split in reversed(facts.splits) if split.tensor == 1]
    found: list[ParallelConfig] = []
    for split in pipelines:
        count, num_devices = divmod(num_devices, split.num_devices)
        found += [split] * count
    return tuple(found)


def uneven_skeletons(search: Search, limit: int) -> list[Splits]:
    """Multisets of splits that leave no device a group could use: all of them when at most `limit`, else a sample."""
    facts = search.facts
    every = list(islice(skeletons(facts), limit + 1))
    if len(every) <= limit:
        return every
    return [tuple(draw_splits(facts, search.random, facts.free_beside())) for _ in range(limit)]


def skeletons(facts: Facts, devices: Sequence[str] | None = None) -> Iterator[Splits]:
    """`multisets` of the case, of those of `devices` (None for all types); one of each type, in every combination."""
    devices = (
        [name for name in facts.parts if any(s.device == name for s in facts.splits)] if devices is None else devices
    )
    if not devices:
        yield ()
        return
    splits = [split for split in facts.splits if split.device == devices[0]]
    for first in multisets(splits, facts.parts[devices[0]].num_devices):
        for others in skeletons(facts, devices[1:]):
            yield (*first, *others)


def multisets(splits: Sequence[ParallelConfig], num_devices: int) -> Iterator[Splits]:
    """Multisets of `splits` on at most `num_devices` that no further split fits beside."""
    smallest, chosen, left, first = min(split.num_devices for split in splits), [], num_devices, 0
    if left < smallest:
        yield ()
    while True:
        fitting = next((i for i in range(first, len(splits)) if splits[i].num_devices <= left), None)
        if fitting is not None:
            chosen.append(fitting)
            left, first = left - splits[fitting].num_devices, fitting
            if left < smallest:
                yield tuple(splits[i] for i in chosen)
        elif chosen:
            first = chosen.pop() + 1
            left += splits[first - 1].num_devices
        else:
            return


def draw_splits(facts: Facts, random: Random, free: Mapping[str, int]) -> Iterator[ParallelConfig]:
    """Splits at random on `free` devices of each type, until no further one fits."""
    left = dict(free)
    while fitting := [split for split in facts.splits if split.num_devices <= left[split.device]]:
        split = random.choice(fitting)
        left[split.device] -= split.num_devices
        yield split


def lone(facts: Facts, model: int) -> float:
    """Least seconds of a lone request over the splits that are of use."""
    return min(facts.lone_seconds(model, split) for split in facts.splits if facts.is_useful(model, split))


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Ordered sums of `parts` positive numbers."""
    for cuts in combinations(range(1, total), parts - 1):
        edges = (0, *cuts, total)
        yield tuple(b - a for a, b in pairwise(edges))


def _distance(devices: tuple[int, ...], work: Sequence[float]) -> float:
    total = sum(devices)
    return max(abs(share - count / total) for share, count in zip(work, devices, strict=True))
