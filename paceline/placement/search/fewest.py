"""`fewest_devices`: the smallest cluster that reaches a wanted attainment, and what it costs per hour.

Devices are of one kind; who may choose among kinds asks for each and compares the costs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from paceline.errors import InvalidParameter
from paceline.placement.case import Case

T = TypeVar("T")


@dataclass(frozen=True)
class Fewest(Generic[T]):
    """The smallest cluster found.

    Attributes:
        num_devices: of the cluster. found: what was planned for it.
        tried: attainment by number of devices, of every cluster that was planned for.
    """

    num_devices: int
    found: T
    tried: Mapping[int, float]


def fewest_devices(case: Case, wanted: float, planned: Callable[[Case], tuple[float, T]]) -> Fewest[T]:
    """Halve the cluster's devices as long as the wanted attainment is reached: log2 of their number plans.

    Args:
        wanted: attainment, in (0, 1].
        planned: plans a case; its attainment and the plan. It may raise InvalidParameter where a model does not fit.

    Raises:
        InvalidParameter: not even all devices of the case reach it; or what `planned` raises for all of them.
    """
    if not 0 < wanted <= 1:
        raise InvalidParameter("reach", f"{wanted} is not in (0, 1]", "give an attainment, e.g. 0.99")
    most = case.cluster.num_devices
    best, found = planned(case)
    tried = {most: best}
    if best < wanted:
        problem = f"all {most} devices reach {best:.2%}, not {wanted:.2%}"
        raise InvalidParameter("reach", problem, "add devices, lower it, or relax the deadlines")
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        smaller = replace(case, cluster=replace(case.cluster, num_devices=middle))
        try:
            tried[middle], plan = planned(smaller)
        except InvalidParameter:  # a model needs more devices
            tried[middle], plan = 0.0, None
        if plan is not None and tried[middle] >= wanted:
            high, found = middle, plan
        else:
            low = middle
    return Fewest(high, found, dict(sorted(tried.items())))
