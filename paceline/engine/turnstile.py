"""`Turnstile`: a lock that threads pass in turn, however often each comes back.

A thread that releases a plain lock and takes it again at once wins nearly always, so threads that wait for a loop of
short critical sections wait for its end. Reentrant, because a finaliser may run within the section.
"""

import threading


class Turnstile:
    """A context manager; a thread that waits at the inner lock keeps others from passing before it."""

    def __init__(self) -> None:
        self._next, self._inside = threading.RLock(), threading.RLock()

    def __enter__(self) -> None:
        with self._next:
            self._inside.acquire()

    def __exit__(self, *_: object) -> None:
        self._inside.release()
