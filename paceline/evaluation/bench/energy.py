"""Energy of the processor, from Linux's counters (RAPL, `/sys/class/powercap`); None if they cannot be read.

A counter covers everything that runs on its package, so it is valid for an arm only if nothing else runs. AMD's
processors have the same files. GPUs are not measured.
"""

from collections.abc import Sequence
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Counters of all processor packages that can be read.

    Args:
        root: folder of the powercap zones.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones: list[tuple[Path, int]] = []
        for zone in sorted(root.glob("intel-rapl:*")):
            is_package = zone.name.count(":") == 1  # zones of cores and memory have two colons
            most = _number(zone / "max_energy_range_uj")
            if is_package and most and _number(zone / "energy_uj") is not None:
                self._zones.append((zone / "energy_uj", most))

    def read(self) -> list[int] | None:
        """Microjoules of each package since an unspecified time; None if a counter is missing."""
        values = [_number(path) for path, _ in self._zones]
        known = [value for value in values if value is not None]
        return known if known and len(known) == len(values) else None

    def joules(self, before: Sequence[int] | None, after: Sequence[int] | None) -> float | None:
        """Joules between two readings, allowing for one overflow of each counter; None if either is None."""
        if before is None or after is None:
            return None
        ranges = [most for _, most in self._zones]
        return sum((b - a) % most for a, b, most in zip(before, after, ranges, strict=True)) / 1e6


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
