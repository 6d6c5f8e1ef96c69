"""`GroupHandle`: the interface of a group; and its supervision: health checks and restarts."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Protocol

from paceline.errors import InvalidParameter
from paceline.placement.tokens import TokenProfile
from paceline.serving.models.job import Chunk, Job


class GroupHandle(Protocol):
    """Interface of a group. Every method but `kill` raises WorkerDied when the group has failed."""

    async def start(self) -> None:
        """Load the group's models, in new processes; returns when it can answer."""
        ...

    def generate(self, job: Job) -> AsyncGenerator[Chunk, None]:
        """Yield the answer in chunks; a single chunk unless the job asks for a stream."""
        ...

    async def abort(self, job: Job) -> None:
        """End a job."""
        ...

    async def check(self) -> None:
        """Return if the group is healthy."""
        ...

    async def max_model_lens(self) -> Mapping[str, int]:
        """Tokens of the longest request of each model that has a limit."""
        ...

    async def pass_profiles(self) -> Mapping[str, TokenProfile]:
        """What passes of each model cost, measured now; empty where that cannot be."""
        ...

    async def metrics(self) -> bytes:
        """Its engines' metrics as Prometheus text; empty where there are none."""
        ...

    async def kill(self) -> None:
        """End the group's processes now; does nothing when there are none."""
        ...


@dataclass(frozen=True, slots=True)
class Supervision:
    """How groups are checked and restarted.

    Attributes:
        heartbeat: seconds between checks.
        timeout: of a check in seconds; after it the group counts as failed.
        max_restarts: consecutive restarts without `stable_seconds` of running in between; after that a group is not
            restarted any more.
        backoff: seconds before the first restart, doubled for each consecutive one.
        stable_seconds: running time after which the count of restarts is reset.
        start_timeout: of a start in seconds; after it the start has failed.
        max_deaths: group failures while one request ran; after that the request is ended as their cause.
    """

    heartbeat: float = 1.0
    timeout: float = 10.0
    max_restarts: int = 3
    backoff: float = 0.5
    stable_seconds: float = 60.0
    start_timeout: float = 900.0
    max_deaths: int = 3

    def __post_init__(self) -> None:
        for name in ("heartbeat", "timeout", "start_timeout", "max_deaths"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidParameter(name, f"{getattr(self, name)}", "give a number above 0")
        for name in ("max_restarts", "backoff", "stable_seconds"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidParameter(name, f"{getattr(self, name)}", "give 0 or more")


@dataclass(slots=True)
class Life:
    """State of one group's supervision.

    Attributes:
        number: number of failures so far; identifies the incarnation, so that stale reports can be ignored.
        since: time in seconds at which it was last ready.
        restarts: consecutive restarts.
        load_seconds: duration of its last start.
    """

    number: int = 0
    since: float = 0.0
    restarts: int = 0
    load_seconds: float = 1.0

    def end(self, now: float, supervision: Supervision) -> float | None:
        """Record a failure; returns the seconds to wait before the restart, None after too many failures."""
        self.number += 1
        if now - self.since > supervision.stable_seconds:
            self.restarts = 0
        if self.restarts >= supervision.max_restarts:
            return None
        self.restarts += 1
        return self._wait(supervision)

    def uncount_failure(self) -> None:
        """Do not count one of its failures, because a request caused it."""
        self.restarts = max(0, self.restarts - 1)

    def restart_after_all(self, supervision: Supervision) -> float | None:
        """For a group that is no longer restarted: seconds before a restart that is allowed after all, else None."""
        if self.restarts >= supervision.max_restarts:
            return None
        self.restarts += 1
        return self._wait(supervision)

    def _wait(self, supervision: Supervision) -> float:
        return supervision.backoff * 2 ** (self.restarts - 1)
