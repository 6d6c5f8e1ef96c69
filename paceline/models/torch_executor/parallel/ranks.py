"""`Ranks`: rank 0's side of a parallel run. Starts the others, sends them commands, ends all when one fails.

Not for what a command does (`model.py`), nor for the processes (`launch.py`).
"""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.errors import WorkerDied, first_line
from paceline.models.torch_executor.parallel.launch import Workers
from paceline.models.torch_executor.parallel.links import Links, Rendezvous
from paceline.models.torch_executor.parallel.messages import Command, Message, integers
from paceline.models.torch_executor.parallel.worker import Assignment, HandlesMessages, ready_key

_POLL_SECONDS = 0.02
"""Seconds between checks whether all ranks have arrived."""


class Ranks:
    """All ranks of one model, as rank 0 has them.

    Args:
        assignment: of rank 0.
        start_others: starts the other ranks, given the rendezvous. None when they are started by other means
            (`run_worker`, with the same rendezvous).

    Attributes:
        workers: the other ranks; None when they were started by other means.
        door: held while a command is sent, so that commands of several threads reach all ranks in the same order.

    Raises:
        WorkerDied: a worker ended, with its traceback, or did not come within the rendezvous' timeout.
    """

    def __init__(self, assignment: Assignment, start_others: Callable[[Rendezvous], Workers] | None = None) -> None:
        self.layout = assignment.layout
        self.door, self._ending = threading.RLock(), threading.Lock()
        self._num_caches, self._dropped = 0, []
        self._broken: WorkerDied | None = None
        self._joined: tuple[Links, HandlesMessages] | None = None
        meeting = assignment.meeting
        store: Any = meeting.store(0, self.layout.world_size)
        workers = start_others(Rendezvous(meeting.host, store.port, meeting.timeout)) if start_others else None
        self.workers = workers
        self._end = weakref.finalize(self, workers.stop, 0) if workers else None
        try:
            self._wait_for(store, "here", meeting.timeout)
            self._joined = assignment.join(store)
            self._wait_for(store, "loaded", meeting.timeout)
        except BaseException as error:
            self.give_up(error)
            raise

    def joined(self) -> tuple[Links, Any]:
        """The links of rank 0, and what handles messages on it. Raises WorkerDied after a failure or `close`."""
        if self._broken is not None:
            raise self._broken
        if self._joined is None:
            raise WorkerDied("the model was ended by an earlier failure; load it again")
        return self._joined

    def number_of_cache(self) -> int:
        """The number of the next cache."""
        self._num_caches += 1
        return self._num_caches - 1

    def drop_with(self, cache: object, number: int) -> None:
        """Have all ranks free their part of a cache once its handle `cache` is gone, with the next command."""
        weakref.finalize(cache, self._dropped.append, number)

    def tell(self, command: Command, *arrays: np.ndarray) -> Message:
        """Send the other ranks `command`, which this rank must execute too; for a caller that holds `door`.

        Raises:
            WorkerDied: the model was closed, or ended by an earlier failure.
            ConnectionError: a rank is gone.
        """
        links, rank = self.joined()
        if self._dropped:
            numbers = [self._dropped.pop() for _ in range(len(self._dropped))]
            message = Message(Command.DROP_CACHES, (integers(*numbers),))
            links.tell(message)
            rank.handle(message)
        message = Message(command, arrays)
        links.tell(message)
        return message

    def give_up(self, error: BaseException) -> None:
        """End the workers because of `error`.

        Raises:
            WorkerDied: the cause was an unreachable rank; the message names it and its last output.
        """
        with self._ending:
            if self._broken is not None:  # another thread was first
                raise self._broken from error
            cause: BaseException = error
            if isinstance(error, ConnectionError):
                symptom = first_line(error)
                lost = WorkerDied(f"the ranks lost each other ({symptom}); start them again")
                cause = lost if self.workers is None else self.workers.obituary(symptom)
            self._broken = WorkerDied(f"the model was ended by an earlier failure; load it again\n{cause}")
            self._release(grace=False)
        if cause is not error:
            raise cause from error

    def close(self, tell_to_close: Callable[[], object]) -> None:
        """End the workers, which `tell_to_close` tells so. May be called again."""
        if self._broken is not None:
            return
        try:
            tell_to_close()
        except WorkerDied:
            return  # the workers have ended already
        self._broken = WorkerDied("the model was closed; load it again")
        self._release(grace=True)

    def _release(self, grace: bool) -> None:
        self._joined = None
        if self.workers is not None and self._end is not None:
            self._end.detach()
            self.workers.stop(*(() if grace else (0,)))

    def _wait_for(self, store: Any, what: str, timeout: float) -> None:
        """Wait until every other rank has set its key `what` in the store. Raises WorkerDied after `timeout`."""
        deadline = time.monotonic() + timeout
        missing = list(range(1, self.layout.world_size))
        while missing := [rank for rank in missing if not store.check([ready_key(rank, what)])]:
            if self.workers is not None:
                self.workers.check()
            if time.monotonic() > deadline:
                problem = f"ranks {', '.join(map(str, missing))} are not {what} after {timeout:g} s"
                raise WorkerDied(f"{problem}; look at their machines, or allow a longer timeout")
            time.sleep(_POLL_SECONDS)
