"""`Backoff`: how often something is launched ahead that the engine may not ask for."""

_LONGEST = 64


class Backoff:
    """After each miss in a row twice as many chances are passed over before the next attempt, up to 64; none after a
    hit."""

    def __init__(self) -> None:
        self._misses, self._wait = 0, 0

    def note(self, is_hit: bool) -> None:
        """Say whether the latest attempt was asked for."""
        self._misses = 0 if is_hit else self._misses + 1
        self._wait = min(2**self._misses, _LONGEST) if self._misses else 0

    def passes_over(self) -> bool:
        """Whether this chance is to be passed over."""
        is_waiting = self._wait > 0
        self._wait -= is_waiting
        return is_waiting
