"""`Cluster`: the devices a placement may use.

All devices are alike; what a link costs is in the models' profiles (`cost.py`). Where devices come in nodes, the ranks
that share a layer are in one node: they add up their parts twice a layer, over the links inside it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.errors import InvalidParameter

MAX_DEVICES = 65_536


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices of one kind.

    Args:
        num_devices: from 1 to `MAX_DEVICES`.
        mem_budget: bytes of one device that may hold weights.
        node_devices: of a node, the last of which may have fewer; None for one node of them all.

    Raises:
        InvalidParameter: no devices, no memory on them, or no devices in a node.
    """

    num_devices: int
    mem_budget: float
    node_devices: int | None = None

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
