"""`Gain`: whether a pass that is launched before it is asked for is expected to save time.

It saves the host's time between two steps if it is the one that is then asked for, and costs a pass if it is not. Both
times and the share of predictable steps are measured. Not for what follows a pass (`foreseen.py`), nor for drafts,
whose attempts a `Backoff` spaces.
"""

from collections.abc import Callable

_MEMORY = 1 / 8
"""Weight of the latest step in the moving averages."""


class Gain:
    """Measured times of one model's steps.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._share, self._pass_seconds, self._host_seconds, self._returned = 0.0, 0.0, 0.0, 0.0

    @property
    def is_expected(self) -> bool:
        """Whether a pass launched now is expected to save more than it costs; False until a pass was timed."""
        saved, wasted = self._share * self._host_seconds, (1 - self._share) * self._pass_seconds
        return self._pass_seconds > 0 and saved > wasted

    def begins(self, was_predictable: bool) -> None:
        """Count a step that begins now; the host's time before it counts if the step follows from the one before."""
        self._share += _MEMORY * (was_predictable - self._share)
        if was_predictable:
            self._host_seconds += _MEMORY * (self._clock() - self._returned - self._host_seconds)

    def ends(self) -> None:
        """The answers of a pass are on the host: from now on the host works until the next step begins."""
        self._returned = self._clock()

    def learn_pass(self, seconds: float, ended_before: bool) -> None:
        """Update the average with a pass that took `seconds`, or less if it `ended_before` the host waited for it."""
        known = self._pass_seconds
        if not known or seconds < known or not ended_before:
            self._pass_seconds += (_MEMORY if known else 1.0) * (seconds - known)

    def assume(self, share: float, host_seconds: float, pass_seconds: float) -> None:
        """Begin with these averages, as after many steps: for tests and simulations."""
        self._share, self._host_seconds, self._pass_seconds = share, host_seconds, pass_seconds
