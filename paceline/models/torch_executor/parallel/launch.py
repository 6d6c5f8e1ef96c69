"""Starts, watches and ends the worker processes of this machine, or workers that `elsewhere` starts.

On other machines, whatever starts the processes calls `run_worker`.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from paceline.errors import WorkerDied
from paceline.models.torch_executor.parallel.worker import LOST_PEER, Assignment

_GRACE = 5.0
"""Seconds that workers have to end by themselves, or to report after one of them died."""
_REPORT_LINES = 30


class Workers(Protocol):
    """The ranks other than 0, as rank 0 sees them."""

    def check(self) -> None:
        """Raise WorkerDied when one is gone."""
        ...

    def obituary(self, symptom: str = "") -> WorkerDied:
        """The error to raise when work failed with `symptom`."""
        ...

    def stop(self, grace: float = _GRACE) -> None:
        """End all, by force those that still run after `grace` seconds. May be called again."""
        ...


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where ranks other than 0 run.

    Attributes:
        host: address of this process for the others.
        start: starts them.
    """

    host: str
    start: Callable[[Sequence[Assignment]], Workers]


_elsewhere: Elsewhere | None = None


@contextlib.contextmanager
def elsewhere(where: Elsewhere) -> Iterator[None]:
    """A context in which the other ranks of launched models run at `where`, each with a device of its own."""
    global _elsewhere
    before, _elsewhere = _elsewhere, where
    try:
        yield
    finally:
        _elsewhere = before


def current_elsewhere() -> Elsewhere | None:
    """The `Elsewhere` of the current context; None for processes of this machine."""
    return _elsewhere


class LocalWorkers:
    """One process per assignment."""

    def __init__(self, assignments: Sequence[Assignment]) -> None:
        self._ranks = [assignment.rank for assignment in assignments]
        self._logs: list[IO[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for assignment in assignments:
                self._start(assignment)
        except BaseException:
            self.stop(grace=0)
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids, in order of rank."""
        return [process.pid for process in self._processes]

    def check(self) -> None:
        """Make sure that all are running.

        Raises:
            WorkerDied: a process has ended; the message has its last output.
        """
        if any(process.poll() is not None for process in self._processes):
            raise self.obituary()

    def obituary(self, symptom: str = "") -> WorkerDied:
        """The error to raise when work failed with `symptom`: which rank ended first, and its last words."""
        deadline = time.monotonic() + _GRACE
        while self._culprit() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        culprit = self._culprit()
        if culprit is None:
            return WorkerDied(f"the ranks lost each other ({symptom}); load the model again")
        status, words = self._processes[culprit].returncode, self._last_words(culprit)
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return WorkerDied(f"the worker of rank {self._ranks[culprit]} {how}; load the model again\n{words}".rstrip())

    def stop(self, grace: float = _GRACE) -> None:
        """End all, by force those that still run after `grace` seconds. May be called again."""
        deadline = time.monotonic() + grace
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()
        for log in self._logs:
            log.close()

    def _start(self, assignment: Assignment) -> None:
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        self._logs.append(log)
        threads = {} if assignment.num_threads is None else {"OMP_NUM_THREADS": str(assignment.num_threads)}
        environment = os.environ | threads | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "paceline.models.torch_executor.parallel.worker"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment)
        self._processes.append(process)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once; check() reports it
            process.stdin.write(pickle.dumps(assignment))
            process.stdin.close()

    def _culprit(self) -> int | None:
        """Index of a worker that failed by itself rather than because another one ended; None for none."""
        statuses = [process.poll() for process in self._processes]
        return next((i for i, status in enumerate(statuses) if status not in (None, 0, LOST_PEER)), None)

    def _last_words(self, index: int) -> str:
        self._logs[index].seek(0)
        lines = self._logs[index].read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_REPORT_LINES:])
