"""`EngineThread`: one background thread that owns an engine and steps it while there is work.

Other threads submit calls, which it runs between steps, so only one thread ever uses the engine. Not for asyncio
(`engine/async_llm.py`) and not for one-off programs (`engine/llm.py`).
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

from paceline.engine.loop.engine import Engine
from paceline.engine.loop.step import StepOutput
from paceline.engine.threads.turns import Turns
from paceline.errors import EngineDead, error_text

_T = TypeVar("_T")
_ALONE = nullcontext()
_MOST_TURNS = 4
"""Most rounds of waiting for further requests before the first step after an idle time."""


class EngineThread:
    """Steps `engine` until it is stopped or fails.

    Args:
        engine: from now on used by this thread only.
        on_outputs: called on this thread with the outputs of each step.
        on_death: called on this thread, once, with the error that ended it; no more outputs follow.
        on_wake: called on this thread before the first step after an idle time, and repeated while it brings in further
            calls. It should wait until callers that are about to submit a request have done so.
        weights: held while passes run, because other engines share the weights (`LoadedModel.turn`).
    """

    def __init__(
        self,
        engine: Engine,
        on_outputs: Callable[[Sequence[StepOutput]], None],
        on_death: Callable[[EngineDead], None],
        on_wake: Callable[[], None] = lambda: None,
        weights: AbstractContextManager[None] = _ALONE,
    ) -> None:
        self._engine, self._on_outputs, self._on_death, self._on_wake = engine, on_outputs, on_death, on_wake
        self._weights = weights
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._death: EngineDead | None = None
        self._is_stopping = False
        self._step_began: float | None = None
        self.turns = Turns()
        """Entered around every step; one object for all engines that share a device."""
        self._thread = threading.Thread(target=self._live, name="paceline-engine", daemon=True)
        self._thread.start()

    @property
    def death(self) -> EngineDead | None:
        """The error with which the thread ended; None while it runs."""
        return self._death

    @property
    def step_seconds(self) -> float:
        """Seconds since the current step began; 0 between steps."""
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
            except BaseException as error:  # it ends the thread; set the future so that its caller does not hang
                future.set_exception(EngineDead(f"the engine failed: {error_text(error)}"))
                raise

        with self._lock:
            if self._death is not None:
                raise self._death
            self._calls.put(run)
        return future

    def with_weights(self, work: Callable[[Engine], _T], engine: Engine) -> _T:
        """`work(engine)`, on this thread, while no engine that shares the weights runs a step."""
        with self._weights:
            return work(engine)

    def stop(self) -> None:
        """Stop the thread after the current step and join it; unfinished requests stay unfinished."""

        def leave(_engine: Engine) -> None:
            self._is_stopping = True

        with suppress(EngineDead):
            self.call(leave)
        self._thread.join()

    def _live(self) -> None:
        death = EngineDead("the engine was shut down")
        try:
            while not self._is_stopping:
                self._run_calls()
                if self._engine.has_unfinished_requests and not self._is_stopping:
                    with self.turns:
                        outputs = self.with_weights(self._step, self._engine)
                    self._on_outputs(outputs)
                else:
                    self.turns.leave()  # the request that needed a step has already been aborted
        except BaseException as error:  # whatever ends the thread, its waiting clients must be told
            death = EngineDead(f"the engine failed: {error_text(error)}")
            death.__cause__ = error
        self._close(death)

    def _step(self, engine: Engine) -> list[StepOutput]:
        self._step_began = time.monotonic()
        outputs = engine.step()
        self._step_began = None
        return outputs

    def _run_calls(self) -> None:
        """Run submitted calls; block until one arrives when no request is unfinished."""
        if not self._engine.has_unfinished_requests:
            self._calls.get()()
            self._gather()
        self._run_waiting()

    def _gather(self) -> None:
        """Collect requests that arrive together, so that they share their first step.

        The place in `turns` is reserved first, so waiting does not let later requests of other engines go ahead.
        """
        if self._engine.has_unfinished_requests:
            self.turns.reserve()
        for _ in range(_MOST_TURNS):
            if not self._engine.has_unfinished_requests:
                return
            self._on_wake()
            if not self._run_waiting():
                return

    def _run_waiting(self) -> int:
        """Run the queued calls and return their number."""
        for count in itertools.count():
            try:
                call = self._calls.get_nowait()
            except Empty:
                return count
            call()
        raise AssertionError("not reached")

    def _close(self, death: EngineDead) -> None:
        """Refuse new calls, run the queued ones, and report the thread's end through `on_death`."""
        self._step_began = None
        self.turns.leave()
        with self._lock:
            self._death = death
        self._run_waiting()  # late calls can still run: the engine's state is intact, only its steps fail
        self._on_death(death)
