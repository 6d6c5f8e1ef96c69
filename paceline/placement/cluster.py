"""`Cluster`: the devices a placement may use.

All devices are alike and reach each other alike; what a link costs is in the models' profiles (`cost.py`).
"""

from dataclasses import dataclass

from paceline.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices of one kind.

    Args:
        num_devices: at least 1.
        mem_budget: bytes of one device that may hold weights.

    Raises:
        InvalidParameter: no devices, or no memory on them.
    """

    num_devices: int
    mem_budget: float

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise InvalidParameter("num_devices", f"{self.num_devices} is less than 1", "give the cluster a device")
        if not self.mem_budget > 0:
            raise InvalidParameter("mem_budget", f"{self.mem_budget} is not above 0", "give bytes per device")
