"""How much of the processors other programs took: what no cluster's run can predict."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class Others:
    """Counts from its making on; Linux only, elsewhere it says nothing."""

    def __init__(self) -> None:
        self._began = _counted()

    def share(self) -> float | None:
        """Processor time of others over that of the machine, in [0, 1]."""
        if self._began is None or (now := _counted()) is None:
            return None
        total, busy, own = (after - before for after, before in zip(now, self._began, strict=True))
        return min(max((busy - own) / max(total, 1 / _TICKS), 0.0), 1.0)


def _counted() -> tuple[float, float, float] | None:
    """Seconds of all processors so far: in all, at work, and at work for this program and its children."""
    try:
        times = [int(each) / _TICKS for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return None
    return sum(times), sum(times) - times[3] - times[4], sum(_tree_seconds().values())


def _tree_seconds() -> dict[int, float]:
    """Of every process that comes from this one, with those of its children that have ended."""
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
