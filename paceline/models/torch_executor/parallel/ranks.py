"""`Ranks`: rank 0's side of a parallel run. Starts the others, sends them commands, ends all when one fails.

Not for what a command does (`model.py`), nor for the processes (`launch.py`).
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from paceline.errors import WorkerDied, first_line
from paceline.models.torch_executor.parallel.launch import Workers
from paceline.models.torch_executor.parallel.links import Links, Rendezvous
from paceline.models.torch_executor.parallel.messages import Command, Message, integers
from paceline.models.torch_executor.parallel.worker import Assignment, HandlesMessages, ready_key

_POLL_SECONDS = 0.02
"""Seconds between checks whether all ranks have arrived."""
_WATCHES = 20
"""Checks within the time that a rank may take to answer."""


class Ranks:
    """All ranks of one model, as rank 0 has them.

    Args:
        assignment: of rank 0.
        start_others: starts the other ranks, given the rendezvous. None when they are started by other means
            (`run_worker`, with the same rendezvous).

    Attributes:
        workers: the other ranks; None when they were started by other means.
        is_closing: whether the workers may end.
        least_free_bytes: see `RunsOnRanks`.
        door: held while a command is sent, so that commands of several threads reach all ranks in the same order.

    Raises:
        WorkerDied: a worker ended, with its traceback, or did not come within the rendezvous' timeout.
    """

    def __init__(self, assignment: Assignment, start_others: Callable[[Rendezvous], Workers] | None = None) -> None:
        self.layout = assignment.layout
        self.door, self._ending = threading.RLock(), threading.Lock()
        self._is_telling = self.is_closing = False
        self._waits: dict[object, float] = {}
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
            self.least_free_bytes: int | None = None
            if assignment.device.startswith("cuda"):
                others = range(1, self.layout.world_size)
                self.least_free_bytes = min(
                    [int(store.get(ready_key(rank, "loaded"))) for rank in others], default=None
                )
                self.guard(meeting.timeout)
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

    def check(self) -> None:
        """Raise WorkerDied after a failure or `close`."""
        self.joined()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A context that waits for the device, and so may wait for other ranks; see `guard`."""
        own = object()
        self._waits[own] = time.monotonic()
        try:
            yield
        finally:
            del self._waits[own]

    @contextmanager
    def checked(self) -> Iterator[None]:
        """As `timed`, with results that count only if no rank has ended meanwhile; raises WorkerDied if one has."""
        try:
            with self.timed():
                yield
        except RuntimeError:  # of a device whose work was ended
            self.check()
            raise
        self.check()

    @contextmanager
    def telling(self, command: Command, *arrays: np.ndarray) -> Iterator[Links]:
        """A context in which this rank executes its part of `command`, which is sent to the others.

        Commands within it are parts of this one, and are not sent.

        Raises:
            WorkerDied: the model was closed, or a rank is gone.
        """
        with self.door:
            links, _ = self.joined()
            if self._is_telling:
                yield links
                return
            self._is_telling = True
            try:
                self.tell(command, *arrays)
                yield links
                links.flush(links.take_sent())
            except BaseException as error:  # out of step with the others, whatever it was
                self.give_up(error)
                raise
            finally:
                self._is_telling = False

    def guard(self, timeout: float) -> None:
        """Notice on threads when a rank has ended or does not answer for `timeout` seconds.

        Then end this rank's work on its device, which would wait for ever.
        """
        links, _ = self.joined()
        when_lost = partial(_lost, ref(self), links)
        links.guard(range(1, self.layout.world_size), when_lost)
        threading.Thread(target=_watch, args=(ref(self), timeout, when_lost), daemon=True).start()

    def longest_wait(self) -> float | None:
        """Seconds since the oldest `timed` context was entered; None after a failure or `close`."""
        now = time.monotonic()
        return None if self._broken else now - min(list(self._waits.values()), default=now)

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
        self.is_closing = True
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


def _lost(of: "ref[Ranks]", links: Links, error: ConnectionError) -> None:
    """End the model `of` these ranks, one of which is gone."""
    ranks = of()
    if ranks is not None and not ranks.is_closing:
        with suppress(WorkerDied):  # which is raised where the model is used
            ranks.give_up(error)
        links.abort()


def _watch(of: "ref[Ranks]", timeout: float, when_lost: Callable[[ConnectionError], None]) -> None:
    """Call `when_lost` once a wait takes longer than `timeout` seconds."""
    while True:
        time.sleep(timeout / _WATCHES)
        ranks = of()
        waited = ranks and ranks.longest_wait()
        if waited is None:
            return
        if waited > timeout:
            return when_lost(ConnectionError(f"no answer for {timeout:g} s"))
        del ranks
