"""`Cluster`: the devices a placement may use.

Devices of one type are identical; communication costs are part of the models' profiles (`cost.py`). With nodes, the
tensor-parallel ranks of a layer are in one node, since they need two all-reduces per layer over its links.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from paceline.errors import InvalidParameter

MAX_DEVICES = 65_536
MAX_TYPES = 8
"""Largest number of device types in one cluster."""


@dataclass(frozen=True, slots=True)
class DeviceType:
    """Devices of one type among several.

    Args:
        name: used in profiles and groups.
        num_devices, mem_budget, node_devices: as in `Cluster`.
        price: of a device per hour; 0 if unknown.

    Raises:
        InvalidParameter: see `Cluster`; or no name, or a price below 0.
    """

    name: str
    num_devices: int
    mem_budget: float
    node_devices: int | None = None
    price: float = 0.0

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidParameter("devices", "a type has no name", "give each its own")
        if not 0 <= self.price < float("inf"):
            raise InvalidParameter("price", f"{self.price} for {self.name!r}", "give what a device costs per hour")
        _ = self.cluster

    @property
    def cluster(self) -> "Cluster":
        """A cluster of only these devices."""
        return Cluster(self.num_devices, self.mem_budget, self.node_devices)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices of one type, or of several.

    Args:
        num_devices: from 1 to `MAX_DEVICES`; of all types together.
        mem_budget: bytes of one device for weights; with several types, the largest.
        node_devices: devices per node (the last may have fewer); None for a single node.
        types: device types (`of_types`); empty where all devices are identical.

    Raises:
        InvalidParameter: no devices, no memory on them, no devices in a node, or types with another number in all.
    """

    num_devices: int
    mem_budget: float
    node_devices: int | None = None
    types: tuple[DeviceType, ...] = ()

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise InvalidParameter("num_devices", f"{self.num_devices} is less than 1", "give the cluster a device")
        if self.num_devices > MAX_DEVICES:
            raise InvalidParameter("num_devices", f"{self.num_devices} devices", f"plan for up to {MAX_DEVICES}")
        if not 0 < self.mem_budget < float("inf"):
            problem = f"{self.mem_budget} is no finite number above 0"
            raise InvalidParameter("mem_budget", problem, "give bytes per device")
        if self.node_devices is not None and self.node_devices < 1:
            problem = f"{self.node_devices} is less than 1"
            raise InvalidParameter("num_devices_per_node", problem, "give the devices of a node, or leave it out")
        if self.types and self.num_devices != sum(each.num_devices for each in self.types):
            problem = f"{self.num_devices}, its types have {sum(each.num_devices for each in self.types)}"
            raise InvalidParameter("num_devices", problem, "change the number of a type")

    @classmethod
    def of_types(cls, types: Iterable[DeviceType]) -> "Cluster":
        """A cluster of several types. Raises InvalidParameter for no types, too many, or two of the same name."""
        types = tuple(types)
        if not 1 <= len(types) <= MAX_TYPES:
            raise InvalidParameter("devices", f"{len(types)} types", f"give 1 to {MAX_TYPES}")
        names = [each.name for each in types]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InvalidParameter("devices", f"{twice!r} is given twice", "give each type its own name")
        total = sum(each.num_devices for each in types)
        return cls(total, max(each.mem_budget for each in types), None, types)

    @property
    def price(self) -> float:
        """Price of all devices per hour; types without a price count as 0."""
        return sum(each.num_devices * each.price for each in self.types)

    def scale_memory(self, factor: float) -> "Cluster":
        """The cluster with `factor` times the memory of every device."""
        types = tuple(replace(each, mem_budget=each.mem_budget * factor) for each in self.types)
        return replace(self, mem_budget=self.mem_budget * factor, types=types)

    def part(self, device: str) -> "Cluster":
        """The devices of that type, as a cluster of their own; all of them where they are alike.

        Raises:
            InvalidParameter: there is no such type.
        """
        found = next((each for each in self.types if each.name == device), None)
        if found is not None:
            return found.cluster
        if self.types or device:
            known = ", ".join(each.name for each in self.types) or "no type: all devices are alike"
            raise InvalidParameter("devices", f"there is no type {device!r}", f"use {known}")
        return replace(self, types=())

    @property
    def per_node(self) -> int:
        """Devices of a full node."""
        return min(self.num_devices, self.node_devices or self.num_devices)

    def has_nodes_for(self, tensor_degrees: Iterable[int]) -> bool:
        """Whether stages of these degrees fit the nodes, each in one: the largest first, each in the first with room.

        Degrees that divide each other and a node's devices fit whenever there are devices enough.
        """
        full, rest = divmod(self.num_devices, self.per_node)
        free = [self.per_node] * full + [rest] * (rest > 0)
        first = 0
        for degree in sorted(tensor_degrees, reverse=True):
            node = next((n for n in range(first, len(free)) if free[n] >= degree), None)
            if node is None:
                return False
            free[node] -= degree
            while first < len(free) and not free[first]:
                first += 1
        return True
