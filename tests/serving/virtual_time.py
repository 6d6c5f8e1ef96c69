"""An event loop whose clock jumps to the next timer: minutes of waiting pass in milliseconds, alike everywhere."""

import asyncio


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only while nothing is ready to run."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run(scene):
    """`asyncio.run` on such a loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scene)
