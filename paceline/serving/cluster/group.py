"""A group seen from outside: what can be asked of it, how it is supervised, and how often it may be restarted."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from paceline.errors import InvalidParameter
from paceline.serving.job import Chunk, Job


class GroupHandle(Protocol):
    """A group seen from outside. Every method but `kill` raises WorkerDied when the group is gone.

    It may also have ``pass_profiles()``, a `TokenProfile` by model, ``max_model_lens()``, tokens of the longest request
    by model, and ``metrics()``, Prometheus text.
    """

    async def start(self) -> None:
        """Load the group's models, in new processes; returns when it can answer."""
        ...

    def generate(self, job: Job) -> AsyncGenerator[Chunk, None]:
        """The answer in pieces, in one piece unless the job asks for a stream."""
        ...

    async def abort(self, job: Job) -> None:
        """End a job."""
        ...

    async def check(self) -> None:
        """Return when all is well."""
        ...

    async def kill(self) -> None:
        """End the group's processes now; nothing happens when they are gone."""
        ...


@dataclass(frozen=True, slots=True)
class Supervision:
    """How groups are checked and restarted.

    Attributes:
        heartbeat: seconds between checks.
        timeout: seconds that a check may take; then the group counts as dead.
        max_restarts: restarts in a row without `stable_seconds` of life in between; then a group is given up.
        backoff: seconds before the first restart, doubled for each that follows in a row.
        stable_seconds: of life, after which restarts count from 0 again.
        start_timeout: seconds that a start may take; then it has failed.
        max_deaths: of groups while they ran one request; then the request is ended as their cause.
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
    """Of one group.

    Attributes:
        number: counts deaths; tells a stale report of one from a new one.
        since: when it was last ready, seconds.
        restarts: in a row.
        load_seconds: that its last start took.
    """

    number: int = 0
    since: float = 0.0
    restarts: int = 0
    load_seconds: float = 1.0

    def end(self, now: float, supervision: Supervision) -> float | None:
        """It died: seconds to wait before the next start, None when it has died too often."""
        self.number += 1
        if now - self.since > supervision.stable_seconds:
            self.restarts = 0
        if self.restarts >= supervision.max_restarts:
            return None
        self.restarts += 1
        return self._wait(supervision)

    def forgive(self) -> None:
        """One of its deaths was a request's fault."""
        self.restarts = max(0, self.restarts - 1)

    def pardoned(self, supervision: Supervision) -> float | None:
        """After it was given up: seconds to wait before a start that is due to it after all, None for none."""
        if self.restarts >= supervision.max_restarts:
            return None
        self.restarts += 1
        return self._wait(supervision)

    def _wait(self, supervision: Supervision) -> float:
        return supervision.backoff * 2 ** (self.restarts - 1)
