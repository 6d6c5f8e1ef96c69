"""`Turnstile`: a lock that threads pass in turn, however often each comes back.

A thread that releases a plain lock and takes it again at once wins nearly always, so threads that wait for a loop of
short critical sections wait for its end. Here at most one thread waits for the lock itself, and whoever released it
can take it again only after that one.
"""

import threading


class Turnstile:
    """A context manager. The thread inside may enter again, because a finaliser may run there: it does not wait.

    Nor does a thread that an interrupt (Ctrl-C) took out of `__enter__` or `__exit__` with the lock in its hands.
    """

    def __init__(self) -> None:
        self._next, self._inside = threading.RLock(), threading.RLock()

    def __enter__(self) -> None:
        if self._inside._is_owned():  # type: ignore[attr-defined]  # as threading.Condition asks
            self._inside.acquire()
            return
        with self._next:
            self._inside.acquire()

    def __exit__(self, *_: object) -> None:
        self._inside.release()
