"""CPU time that other programs took during a run, which no simulation of a cluster can predict."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class Others:
    """CPU time of other programs since this object was created; Linux only."""

    def __init__(self) -> None:
        self._began = _counted()

    def share(self) -> float | None:
        """CPU time of other programs over that of the machine, in [0, 1]; None where it is unknown."""
        if self._began is None or (now := _counted()) is None:
            return None
        total, busy, own = (after - before for after, before in zip(now, self._began, strict=True))
        return min(max((busy - own) / max(total, 1 / _TICKS), 0.0), 1.0)


def _counted() -> tuple[float, float, float] | None:
    """CPU seconds of all processors so far: total, busy, and busy for this program and its children."""
    try:
        times = [int(each) / _TICKS for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return None
    return sum(times), sum(times) - times[3] - times[4], sum(_tree_seconds().values())


def _tree_seconds() -> dict[int, float]:
    """CPU seconds of this process and its descendants by id, ended children included."""
    parents, seconds = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        pid = int(entry.parent.name)
        parents[pid], seconds[pid] = int(fields[1]), sum(map(int, fields[11:15])) / _TICKS
    found, new = set(), {os.getpid()}
    while new:
        found |= new
        new = {pid for pid, parent in parents.items() if parent in new} - found
    return {pid: seconds[pid] for pid in found if pid in seconds}
