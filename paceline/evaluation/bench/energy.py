"""Energy that the processor took, from Linux's counters (RAPL, `/sys/class/powercap`); None where nobody may read them.

A package's counter holds all that ran on it, so it says something of an arm only while nothing else runs. AMD's
processors have the same files. Graphics cards are not read.
"""

from collections.abc import Sequence
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Counters of all processor packages; those that cannot be read are left out.

    Args:
        root: folder of the zones.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones: list[tuple[Path, int]] = []
        for zone in sorted(root.glob("intel-rapl:*")):
            is_package = zone.name.count(":") == 1  # a core's or the memory's zone has two
            most = _number(zone / "max_energy_range_uj")
            if is_package and most and _number(zone / "energy_uj") is not None:
                self._zones.append((zone / "energy_uj", most))

    def read(self) -> list[int] | None:
        """Microjoules of each package since some moment; None where there is no counter."""
        values = [_number(path) for path, _ in self._zones]
        known = [value for value in values if value is not None]
        return known if known and len(known) == len(values) else None

    def joules(self, before: Sequence[int] | None, after: Sequence[int] | None) -> float | None:
        """Between two readings; a counter may have begun anew once. None where either is unknown."""
        if before is None or after is None:
            return None
        ranges = [most for _, most in self._zones]
        return sum((b - a) % most for a, b, most in zip(before, after, ranges, strict=True)) / 1e6


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
