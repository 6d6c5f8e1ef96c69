"""`Turnstile`: a lock that threads pass in turn, however often each comes back.

A thread that releases a plain lock and takes it again at once wins nearly always, so threads that wait for a loop of
short critical sections wait for its end. Here at most one thread waits for the lock itself, and whoever released it
can take it again only after that one.
"""

import threading


class Turnstile:
    """A context manager. The thread inside may enter again, because a finaliser may run there: it does not wait."""

    def __init__(self) -> None:
        self._next, self._inside = threading.RLock(), threading.Lock()
        self._owner, self._depth = 0, 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._owner != me:
            with self._next:
                self._inside.acquire()
            self._owner = me
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = 0
            self._inside.release()
