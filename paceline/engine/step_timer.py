"""`StepTimer`: where the time of one step went. Not for anything that lasts longer."""

from collections.abc import Callable

from paceline.speculation import StepSeconds


class StepTimer:
    """Runs from its construction.

    Attributes:
        now: the latest reading of the clock.
        seconds: what is known so far.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.seconds = StepSeconds()
        self.now = clock()

    def scheduled(self) -> None:
        """The plan is made."""
        self.seconds.scheduling = self._lap()

    def drafted(self, chosen: float = 0.0) -> None:
        """Drafts are there; `chosen` seconds of it the drafter had weighed itself."""
        self.seconds.drafting = self._lap()
        self.seconds.chosen = min(chosen, self.seconds.drafting)

    def verified(self) -> None:
        """The pass and its verdicts are there."""
        self.seconds.verifying = self._lap()

    def committed(self) -> None:
        """The scheduler is up to date."""
        self.seconds.committing = self._lap()

    def finished(self) -> StepSeconds:
        """Texts are written and drafters told; where the time went."""
        self.seconds.committing += self._lap()
        return self.seconds

    def _lap(self) -> float:
        before, self.now = self.now, self._clock()
        return self.now - before
