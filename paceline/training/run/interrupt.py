"""Ctrl-C ends a run between two updates, so its checkpoint holds a whole number of updates."""

import signal
import threading
from types import FrameType, TracebackType


class Interrupt:
    """A context in which the first SIGINT only sets `asked`; the second one raises KeyboardInterrupt as usual.

    Outside the main thread, where Python allows no signal handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before = None

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
