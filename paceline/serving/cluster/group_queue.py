"""`GroupQueue`: the queue of one group for single-pass requests, with predicted completion times.

The rule of Li et al. 2023 (AlpaServe), for plans made with it; engines that run many requests at once have a
`TokenQueue`. Times are in seconds of the caller's clock. `controller.py` chooses the group of a request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.serving.cluster.ticket import Standing, Ticket

LEARNING_RATE = 0.2
"""Weight of the newest measurement in the moving average of service times."""


@dataclass(slots=True)
class _Entry:
    ticket: Ticket
    since: float
    """Time at which it joined the queue, or once it runs, at which it started."""
    is_running: bool = False
    was_alone: bool = False


class GroupQueue:
    """A first-come-first-served queue of a pipeline of stages.

    Args:
        stage_seconds: for each model that the group holds, its seconds per stage; None where unknown. Unknown times
            count as 0 until a first request was measured; meanwhile one request at a time is admitted.
        num_stages: pipeline degree, and the number of requests that may run at once.
        overhead: seconds between a request's last stage and its answer.
    """

    def __init__(
        self, stage_seconds: Mapping[str, Sequence[float] | None], num_stages: int = 1, overhead: float = 0.0
    ) -> None:
        self._overhead = overhead
        evenly = [1.0 / num_stages] * num_stages
        self._seconds = {model: list(seconds or evenly) for model, seconds in stage_seconds.items()}
        self._scale = {model: 1.0 if seconds else 0.0 for model, seconds in stage_seconds.items()}
        self._num_stages = num_stages
        self._entries: dict[str, _Entry] = {}
        self._passed = [float("-inf")] * num_stages  # when each stage was left by what has finished
        self._opens_at = float("-inf")

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._entries

    @property
    def models(self) -> tuple[str, ...]:
        """See `Queue.models`."""
        return tuple(self._seconds)

    def seconds(self, model: str, size: float = 1.0) -> list[float]:
        """Predicted seconds per stage of a request of `size`."""
        factor = self._scale[model] * size
        return [factor * seconds for seconds in self._seconds[model]]

    def free_at(self, now: float) -> float:
        """Predicted time at which the last stage becomes idle; in the past for an idle group."""
        return max(self._clocks(now)[-1], self._opens_at)

    def finish_at(self, model: str, size: float, now: float) -> float:
        """Predicted time at which a request that joins now would leave the last stage."""
        clocks = self._clocks(now)
        _advance(clocks, max(now, self._opens_at), self.seconds(model, size))
        return clocks[-1]

    def open_at(self, seconds: float) -> None:
        """Start nothing before time `seconds`, because the group is restarting."""
        self._opens_at = seconds

    @property
    def num_running(self) -> int:
        """Number of running requests."""
        return sum(entry.is_running for entry in self._entries.values())

    def rank(self, ticket: Ticket, now: float) -> tuple[float, ...]:
        """Sort key, smaller is better: the predicted time at which the last stage becomes idle."""
        return (self.free_at(now),)

    def standing(self, ticket: Ticket, now: float) -> Standing:
        """Predicted completion of a request that joins now."""
        end = self.finish_at(ticket.model, ticket.size, now) + self._overhead
        if end > ticket.deadline:
            return Standing(end, f"would take {end - now:.3f} s", end - ticket.deadline)
        if not self._scale[ticket.model] and self._entries and ticket.deadline < float("inf"):
            return Standing(end, "comes while the first request says how fast the group is", 0.0)
        return Standing(end)

    def add(self, ticket: Ticket, now: float) -> None:
        """Append a request that waits from `now` on."""
        self._entries[ticket.request_id] = _Entry(ticket, now)

    def start(self, now: float) -> list[Ticket]:
        """Mark requests that can start as running, and return them."""
        running = sum(entry.is_running for entry in self._entries.values())
        waiting = [entry for entry in self._entries.values() if not entry.is_running]
        turns = waiting[: max(0, self._num_stages - running)]
        for entry in turns:
            entry.was_alone = running == 0 and len(turns) == 1
            entry.is_running, entry.since = True, now
        return [entry.ticket for entry in turns]

    def finish(self, request_id: str, now: float, num_tokens: int | None = None) -> Ticket:
        """Remove a request that left the last stage, and learn from its service time."""
        entry = self._entries.pop(request_id)
        if entry.was_alone:
            self._learn(entry, now - entry.since)
        clocks = list(self._passed)
        _advance(clocks, entry.since, self.seconds(entry.ticket.model, entry.ticket.size))
        self._passed = [min(clock, now) for clock in clocks[:-1]] + [max(self._passed[-1], now)]
        return entry.ticket

    def remove(self, request_id: str) -> Ticket:
        """Remove and return an aborted request."""
        return self._entries.pop(request_id).ticket

    def clear(self) -> list[Ticket]:
        """Remove and return all requests, in order."""
        tickets = [entry.ticket for entry in self._entries.values()]
        self._entries.clear()
        return tickets

    def _clocks(self, now: float) -> list[float]:
        """Predicted time at which each stage becomes idle; requests that exceed their prediction end no earlier than
        `now`."""
        clocks = list(self._passed)
        for entry in self._entries.values():
            ticket = entry.ticket
            _advance(clocks, max(entry.since, self._opens_at), self.seconds(ticket.model, ticket.size))
            if entry.is_running:
                clocks[-1] = max(clocks[-1], now)
        return clocks

    def _learn(self, entry: _Entry, seconds: float) -> None:
        model, size = entry.ticket.model, entry.ticket.size
        measured = seconds / (size * sum(self._seconds[model]))
        known = self._scale[model]
        self._scale[model] = known + LEARNING_RATE * (measured - known) if known else measured


def _advance(clocks: list[float], start: float, seconds: Sequence[float]) -> None:
    """Advance `clocks` by a request that is ready at `start` and passes the stages in order."""
    clock = start
    for stage, duration in enumerate(seconds):
        clock = max(clock, clocks[stage]) + duration
        clocks[stage] = clock
