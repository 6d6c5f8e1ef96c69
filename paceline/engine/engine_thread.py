"""`EngineThread`: one background thread that owns an engine and steps it while there is work.

Others hand it calls; it runs them between steps, so the engine itself never sees two threads. Not for asyncio
(`async_llm.py`) and not for one-off programs (`llm.py`).
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

from paceline.engine.engine import Engine, StepOutput
from paceline.engine.turns import Turns
from paceline.errors import EngineDead, error_text

_T = TypeVar("_T")
_MOST_TURNS = 4
"""Times that a first step waits for more requests."""


class EngineThread:
    """Steps `engine` until it is stopped or fails.

    Args:
        engine: from now on touched by this thread only.
        on_outputs: called on this thread with the outputs of each step.
        on_death: called on this thread, once, with the error that ended it; no more outputs come.
        on_wake: called on this thread before the first step after a time without work, and again as long as that
            brought more calls; it waits until callers who are about to make one have made it.
    """

    def __init__(
        self,
        engine: Engine,
        on_outputs: Callable[[Sequence[StepOutput]], None],
        on_death: Callable[[EngineDead], None],
        on_wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine, self._on_outputs, self._on_death, self._on_wake = engine, on_outputs, on_death, on_wake
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._door = threading.Lock()
        self._death: EngineDead | None = None
        self._is_stopping = False
        self._step_began: float | None = None
        self.turns = Turns()
        """Entered around every step; of several engines where these share a device."""
        self._thread = threading.Thread(target=self._live, name="paceline-engine", daemon=True)
        self._thread.start()

    @property
    def death(self) -> EngineDead | None:
        """Why the thread has ended; None while it lives."""
        return self._death

    @property
    def step_seconds(self) -> float:
        """How long the step that runs now has taken; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    def call(self, function: Callable[[Engine], _T]) -> "Future[_T]":
        """Run `function` between two steps; the future holds its result or error.

        Raises:
            EngineDead: the thread has ended.
        """
        future: Future[_T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(self._engine))
            except Exception as error:
                future.set_exception(error)
            except BaseException as error:  # it ends the thread, and its caller must not wait for ever
                future.set_exception(EngineDead(f"the engine failed: {error_text(error)}"))
                raise

        with self._door:
            if self._death is not None:
                raise self._death
            self._calls.put(run)
        return future

    def stop(self) -> None:
        """End after the current step and wait for it; requests that still run are not finished."""

        def leave(_engine: Engine) -> None:
            self._is_stopping = True

        if self._death is None:
            self.call(leave)
        self._thread.join()

    def _live(self) -> None:
        death = EngineDead("the engine was shut down")
        try:
            while not self._is_stopping:
                self._run_calls()
                if self._engine.has_unfinished_requests and not self._is_stopping:
                    with self.turns:
                        self._step_began = time.monotonic()
                        outputs = self._engine.step()
                        self._step_began = None
                    self._on_outputs(outputs)
                else:
                    self.turns.leave()  # what asked for a step is gone already
        except BaseException as error:  # whatever ends the thread, nobody may wait for it
            death = EngineDead(f"the engine failed: {error_text(error)}")
            death.__cause__ = error
        self._close(death)

    def _run_calls(self) -> None:
        """Run what was asked; wait for a call when there is nothing else to do."""
        if not self._engine.has_unfinished_requests:
            self._calls.get()()
            self._gather()
        self._run_waiting()

    def _gather(self) -> None:
        """Let requests that come together share their first step; who came first to another engine is still before."""
        if self._engine.has_unfinished_requests:
            self.turns.reserve()
        for _ in range(_MOST_TURNS):
            if not self._engine.has_unfinished_requests:
                return
            self._on_wake()
            if not self._run_waiting():
                return

    def _run_waiting(self) -> int:
        """Run the calls that wait; how many there were."""
        for count in itertools.count():
            try:
                call = self._calls.get_nowait()
            except Empty:
                return count
            call()
        raise AssertionError("not reached")

    def _close(self, death: EngineDead) -> None:
        """Let nobody in any more, answer those who are, and tell that it is over."""
        self._step_began = None
        self.turns.leave()
        with self._door:
            self._death = death
        self._run_waiting()  # calls that came too late: the engine's state is intact, only its steps fail
        self._on_death(death)
