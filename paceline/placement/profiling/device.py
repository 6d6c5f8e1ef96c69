"""`DeviceSheet`: what a device's data sheet says, and the part of it that engines reach."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from paceline.errors import InvalidParameter
from paceline.placement.fields import number_of, only_known, read_mapping, whole_of


@dataclass(frozen=True, slots=True)
class DeviceSheet:
    """One device, as its maker describes it.

    Attributes:
        operations: per second, of dense matrix products in the weights' type.
        bandwidth: bytes per second of its memory.
        memory: bytes.
        link_bandwidth: bytes per second to a device of the same node, one way. link_latency: seconds of a message.
        node_devices: devices of a node; groups beyond it are not profiled.
        compute_share, bandwidth_share: the part of operations and bandwidth that engines reach.
        step_overhead: seconds of a step besides its pass.

    Raises:
        InvalidParameter: a number that is not above 0, or a share above 1.
    """

    operations: float
    bandwidth: float
    memory: float
    link_bandwidth: float = 16e9
    link_latency: float = 10e-6
    node_devices: int = 8
    compute_share: float = 0.5
    bandwidth_share: float = 0.75
    step_overhead: float = 2e-3

    def __post_init__(self) -> None:
        for name in ("operations", "bandwidth", "memory", "link_bandwidth", "node_devices"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidParameter(name, f"{getattr(self, name)}", "give a finite number above 0")
        for name in ("compute_share", "bandwidth_share"):
            if not 0 < getattr(self, name) <= 1:
                raise InvalidParameter(name, f"{getattr(self, name)}", "give a part of 1")
        for name in ("link_latency", "step_overhead"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidParameter(name, f"{getattr(self, name)}", "give seconds, 0 or more")


DEVICES = {
    "t4": DeviceSheet(65e12, 320e9, 16e9),
    "v100-16gb": DeviceSheet(125e12, 900e9, 16e9, 150e9),
    "l4": DeviceSheet(121e12, 300e9, 24e9, 32e9),
    "l40s": DeviceSheet(362e12, 864e9, 48e9, 32e9),
    "a10g": DeviceSheet(70e12, 600e9, 24e9),
    "a100-40gb": DeviceSheet(312e12, 1555e9, 40e9, 300e9),
    "a100-80gb": DeviceSheet(312e12, 2039e9, 80e9, 300e9),
    "h100": DeviceSheet(989e12, 3350e9, 80e9, 450e9),
    "h200": DeviceSheet(989e12, 4800e9, 141e9, 450e9),
    "mi300x": DeviceSheet(1307e12, 5300e9, 192e9, 448e9),
}
"""The makers' figures: dense 16-bit operations, memory, and NVLink or PCIe one way."""


def read_device(name: str) -> DeviceSheet:
    """A device of `DEVICES`, in capitals or not, or one of a JSON or YAML file with the fields of `DeviceSheet`.

    Raises:
        InvalidParameter: neither, or a field that cannot be used.
    """
    if name.lower() in DEVICES:
        return DEVICES[name.lower()]
    path = Path(name)
    if not path.exists():
        raise InvalidParameter("device", f"there is no {name!r}", f"give a file, or one of {', '.join(DEVICES)}")
    values = read_mapping(path, "device")
    only_known(values, [field.name for field in fields(DeviceSheet)], "device")
    given: dict[str, Any] = {key: number_of(values, key, where="device") for key in values if key != "node_devices"}
    for key in ("operations", "bandwidth", "memory"):
        given.setdefault(key, number_of(values, key, where="device"))
    if "node_devices" in values:
        given["node_devices"] = whole_of(values, "node_devices", where="device")
    return DeviceSheet(**given)
