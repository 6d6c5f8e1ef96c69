"""`StepTimer`: times the phases of an engine's steps. Not for what callers do between two steps."""

from collections.abc import Callable


class StepTimer:
    """A stopwatch that runs while the engine works on steps.

    All its time is in some phase of some step: what follows the last phase of a step is in the first lap after it.

    Attributes:
        now: the latest reading of the clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.now = self._before = clock()
        self._held = 0.0

    def resume(self) -> None:
        """Run again after `pause`."""
        self.now = self._clock()
        self._before = self.now - self._held

    def pause(self, *, goes_on: bool) -> None:
        """Stop. Unless the next step `goes_on` with the same requests, the unfinished lap is discarded."""
        self.now = self._clock()
        self._held = self.now - self._before if goes_on else 0.0

    def lap(self) -> float:
        """Seconds since the latest lap ended."""
        self.now = self._clock()
        seconds, self._before = self.now - self._before, self.now
        return seconds
