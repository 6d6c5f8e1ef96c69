"""`StepTimer`: times the phases of one step. Not for anything that lasts longer."""

from collections.abc import Callable

from paceline.speculation import StepSeconds


class StepTimer:
    """Starts at construction; each method marks the end of a phase.

    Attributes:
        now: the latest reading of the clock.
        seconds: the phases so far.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.seconds = StepSeconds()
        self.now = clock()

    def scheduled(self) -> None:
        """End of scheduling."""
        self.seconds.scheduling = self._lap()

    def drafted(self, chosen: float = 0.0) -> None:
        """End of drafting; `chosen` is the part whose cost the drafter had weighed itself (`StepSeconds.chosen`)."""
        self.seconds.drafting = self._lap()
        self.seconds.chosen = min(chosen, self.seconds.drafting)

    def verified(self) -> None:
        """End of the target pass and verification."""
        self.seconds.verifying = self._lap()

    def committed(self) -> None:
        """End of the scheduler's update."""
        self.seconds.committing = self._lap()

    def finished(self) -> StepSeconds:
        """End of the step, text and drafters' `observe` included; returns the seconds of all phases."""
        self.seconds.committing += self._lap()
        return self.seconds

    def _lap(self) -> float:
        before, self.now = self.now, self._clock()
        return self.now - before
