"""`EventLog`: log of a cluster's events, one JSON object per line."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Any

MAX_KEPT = 1000


class EventLog:
    """Keeps the latest events and writes all of them to `stream`, if there is one.

    Args:
        stream: open text file.
        clock: seconds since the epoch.
    """

    def __init__(self, stream: IO[str] | None = None, clock: Callable[[], float] = time.time) -> None:
        self._stream, self._clock = stream, clock
        self._kept: deque[dict[str, Any]] = deque(maxlen=MAX_KEPT)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(tuple(self._kept))

    def record(self, event: str, **facts: Any) -> None:
        """Log `event` with the current time."""
        entry = {"time": round(self._clock(), 3), "event": event, **facts}
        self._kept.append(entry)
        if self._stream is not None:
            print(json.dumps(entry), file=self._stream, flush=True)

    def named(self, event: str) -> list[dict[str, Any]]:
        """Kept events of one name, in order."""
        return [entry for entry in self._kept if entry["event"] == event]
