"""`Cluster`: the devices a placement may use.

All devices are alike and reach each other alike; what a link costs is in the models' profiles (`cost.py`).
"""

from dataclasses import dataclass

from paceline.errors import InvalidParameter

MAX_DEVICES = 65_536


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices of one kind.

    Args:
        num_devices: from 1 to `MAX_DEVICES`.
        mem_budget: bytes of one device that may hold weights.

    Raises:
        InvalidParameter: no devices, or no memory on them.
    """

    num_devices: int
    mem_budget: float

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise InvalidParameter("num_devices", f"{self.num_devices} is less than 1", "give the cluster a device")
        if self.num_devices > MAX_DEVICES:
            raise InvalidParameter("num_devices", f"{self.num_devices} devices", f"plan for up to {MAX_DEVICES}")
        if not 0 < self.mem_budget < float("inf"):
            problem = f"{self.mem_budget} is no finite number above 0"
            raise InvalidParameter("mem_budget", problem, "give bytes per device")
