"""`fewest_devices`, `cheapest_types`: the smallest or cheapest cluster that reaches a wanted attainment."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Generic, TypeVar

from paceline.errors import InvalidParameter
from paceline.placement.case import Case
from paceline.placement.cluster import Cluster

T = TypeVar("T")


@dataclass(frozen=True)
class Fewest(Generic[T]):
    """The smallest cluster found.

    Attributes:
        num_devices: of the cluster. found: what was planned for it.
        tried: attainment by number of devices, of every cluster that was planned for; where there are several types, by
            what `described` says.
    """

    num_devices: int
    found: T
    tried: Mapping[int, float] | Mapping[str, float]


def fewest_devices(case: Case, wanted: float, planned: Callable[[Case], tuple[float, T]]) -> Fewest[T]:
    """Halve the cluster's devices as long as the wanted attainment is reached: log2 of their number plans.

    Args:
        wanted: attainment, in (0, 1].
        planned: plans a case; its attainment and the plan. It may raise InvalidParameter where a model does not fit.

    Raises:
        InvalidParameter: not even all devices of the case reach it; or what `planned` raises for all of them.
    """
    most = case.cluster.num_devices
    best, found = _on_all(case, wanted, planned)
    tried: dict[int, float] = {most: best}
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        tried[middle], plan = _on(case, replace(case.cluster, num_devices=middle), planned)
        if plan is not None and tried[middle] >= wanted:
            high, found = middle, plan
        else:
            low = middle
    return Fewest(high, found, dict(sorted(tried.items())))


def cheapest_types(case: Case, wanted: float, planned: Callable[[Case], tuple[float, T]]) -> Fewest[T]:
    """The cheapest devices among several types: numbers of each that double, cheapest first, then one less of each.

    What has no more of any type than a cluster that fell short is not planned for. Where no type has a price, all
    devices cost alike. Arguments and errors as of `fewest_devices`.
    """
    cluster = case.cluster
    best, found = _on_all(case, wanted, planned)
    tried: dict[str, float] = {described(cluster): best}
    failed: list[tuple[int, ...]] = []
    chosen = tuple(device.num_devices for device in cluster.types)

    def reaches(counts: tuple[int, ...]) -> bool:
        nonlocal found
        if any(all(a <= b for a, b in zip(counts, each, strict=True)) for each in failed):
            return False
        part = _with_counts(cluster, counts)
        tried[described(part)], plan = _on(case, part, planned)
        if plan is None or tried[described(part)] < wanted:
            failed.append(counts)
            return False
        found = plan
        return True

    steps = [_doubling(device.num_devices) for device in cluster.types]
    some = (counts for counts in product(*steps) if any(counts) and counts != chosen)
    cheaper = sorted(some, key=lambda counts: _cost(cluster, counts))
    whole = _cost(cluster, chosen)
    chosen = next((c for c in cheaper if _cost(cluster, c) < whole and reaches(c)), chosen)
    while fewer := next((c for c in _one_less(cluster, chosen) if reaches(c)), None):
        chosen = fewer
    return Fewest(sum(chosen), found, tried)


def described(cluster: Cluster) -> str:
    """Such as ``2 h100, 4 l4``."""
    return ", ".join(f"{device.num_devices} {device.name}" for device in cluster.types)


def _on_all(case: Case, wanted: float, planned: Callable[[Case], tuple[float, T]]) -> tuple[float, T]:
    """Attainment and plan on all devices. Raises InvalidParameter when that is not what is wanted."""
    if not 0 < wanted <= 1:
        raise InvalidParameter("reach", f"{wanted} is not in (0, 1]", "give an attainment, e.g. 0.99")
    best, found = planned(case)
    if best < wanted:
        problem = f"all {case.cluster.num_devices} devices reach {best:.2%}, not {wanted:.2%}"
        raise InvalidParameter("reach", problem, "add devices, lower it, or relax the deadlines")
    return best, found


def _on(case: Case, cluster: Cluster, planned: Callable[[Case], tuple[float, T]]) -> tuple[float, T | None]:
    """Attainment and plan on other devices; 0 and None where a model needs more."""
    try:
        return planned(replace(case, cluster=cluster))
    except InvalidParameter:
        return 0.0, None


def _with_counts(cluster: Cluster, counts: tuple[int, ...]) -> Cluster:
    pairs = zip(cluster.types, counts, strict=True)
    return Cluster.of_types(replace(device, num_devices=count) for device, count in pairs if count)


def _cost(cluster: Cluster, counts: tuple[int, ...]) -> float:
    prices = [device.price for device in cluster.types] if cluster.price else [1.0] * len(counts)
    return sum(price * count for price, count in zip(prices, counts, strict=True))


def _one_less(cluster: Cluster, counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """One device less of each type in turn, the dearest first."""
    order = sorted(range(len(counts)), key=lambda i: -cluster.types[i].price)
    for i in order:
        if counts[i] and sum(counts) > 1:
            yield (*counts[:i], counts[i] - 1, *counts[i + 1 :])


def _doubling(most: int) -> list[int]:
    """0, 1, 2, 4, ... and `most`."""
    return sorted({0, most, *(1 << i for i in range(most.bit_length()) if 1 << i < most)})
