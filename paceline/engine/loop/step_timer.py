"""`StepTimer`: times the phases of an engine's steps."""

from collections.abc import Callable


class StepTimer:
    """A stopwatch that runs while the engine works on steps.

    All its time is in some phase of some step: what follows the last phase of a step is in the first lap after it. What
    a caller does between two steps is in none, unless a pass is under way meanwhile. Then it counts, but for no longer
    than the engine's latest step took: a caller that takes longer is the slower of the two.

    Attributes:
        now: the latest reading of the clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.now = self._resumed = self._before = clock()
        self._held = self._most_between = 0.0

    def resume(self) -> None:
        """Run again after `pause`."""
        paused, self.now = self.now, self._clock()
        self._resumed = self.now
        self._before = self.now - self._held - min(self.now - paused, self._most_between)

    def pause(self, *, goes_on: bool, is_under_way: bool = False) -> None:
        """Stop. Unless the next step `goes_on` with the same requests, the unfinished lap is discarded.

        Args:
            is_under_way: the device works on the pass of the next step.
        """
        self.now = self._clock()
        self._held = self.now - self._before if goes_on else 0.0
        self._most_between = self.now - self._resumed if is_under_way else 0.0

    def lap(self) -> float:
        """Seconds since the latest lap ended."""
        self.now = self._clock()
        seconds, self._before = self.now - self._before, self.now
        return seconds
