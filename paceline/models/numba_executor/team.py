"""A team of threads that run one pass together.

Numba's own parallel regions cost microseconds each and a pass has hundreds of them. Here every thread runs the whole
pass as one compiled call without the GIL; between phases threads meet at a barrier (a counter in memory), and inside a
phase they take chunks of work from a shared counter, so that a slow core delays the others little. The result of a
chunk does not depend on the thread that computes it.

Not for what is computed (`forward.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import queue
import sys
import threading
import weakref
from collections.abc import Callable, Sequence

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from paceline.errors import EngineDead, PacelineError
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.kernel import kernel
from paceline.models.processors import usable_cores

SPINS_BEFORE_YIELD = 4000
_YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
"""The system's function without arguments that lets another thread of this processor run."""


@intrinsic
def fetch_add(typingctx, counters, index, amount):
    """Atomically add `amount` to counters[index]; returns the value before."""

    def emit(context, builder, sig, args):
        pointer = v.element_pointer(context, builder, counters, args[0], args[1])
        return builder.atomic_rmw("add", pointer, args[2], "acq_rel")

    return types.int64(counters, types.intp, types.int64), emit


@intrinsic
def acquire(typingctx, counters, index):
    """Atomic load of counters[index]."""

    def emit(context, builder, sig, args):
        pointer = v.element_pointer(context, builder, counters, args[0], args[1])
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(counters, types.intp), emit


@intrinsic
def yield_processor(typingctx):
    """Let another thread of this processor run."""

    def emit(context, builder, sig, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, _YIELD), [])
        return context.get_dummy_value()

    return types.void(), emit


@kernel
def barrier(counters, meetings, num_threads):
    """Wait for all threads; `meetings` is how often this thread has met the others in this pass, the new count returns.

    counters[0] counts arrivals and must be 0 when the pass begins.
    """
    meetings += 1
    fetch_add(counters, 0, 1)
    spins = 0
    while acquire(counters, 0) < meetings * num_threads:
        spins += 1
        if spins > SPINS_BEFORE_YIELD:
            yield_processor()
    return meetings


@kernel
def take(counters, phase, size, total):
    """First element of the next chunk of `size` out of `total` in `phase`; -1 when all are taken.

    counters[1 + phase] counts the chunks taken and must be 0 when the pass begins.
    """
    first = fetch_add(counters, 1 + phase, 1) * size
    return first if first < total else -1


@kernel
def take_after(counters, phase, size, total, num_threads):
    """`take` where every thread has begun with the chunk of its own number."""
    first = (fetch_add(counters, 1 + phase, 1) + num_threads) * size
    return first if first < total else -1


class Team:
    """Threads that run one compiled function together, this thread among them.

    Args:
        num_threads: members; by default the physical cores that this process may use.

    Raises:
        PacelineError: the system starts no more threads; those that had started are ended.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self.num_threads = num_threads or usable_cores()
        self._inboxes = [queue.SimpleQueue() for _ in range(self.num_threads - 1)]
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _end, self._inboxes)
        for index, inbox in enumerate(self._inboxes, start=1):
            try:
                threading.Thread(target=_work, args=(index, inbox), daemon=True, name=f"paceline-{index}").start()
            except RuntimeError as error:
                self._end()
                problem = f"thread {index + 1} of {self.num_threads} cannot start ({error})"
                raise PacelineError(f"num_threads: {problem}; ask for fewer") from None

    def run(self, kernel: Callable, *args: object) -> None:
        """kernel(thread, *args) on every member. The kernel must end with a barrier and must release the GIL.

        Raises:
            EngineDead: the team is closed; the kernel would wait for its members forever.
        """
        with self._lock:  # all members get the job, or the end
            if not self._end.alive:
                raise EngineDead("the threads of this model have ended: it is closed; make a new one")
            for inbox in self._inboxes:
                inbox.put((kernel, args))
        kernel(0, *args)

    def close(self) -> None:
        """End the threads; also done when nobody holds the team any more."""
        with self._lock:
            self._end()


def _end(inboxes: Sequence[queue.SimpleQueue]) -> None:
    for inbox in inboxes:
        inbox.put(None)


def _work(index: int, inbox: queue.SimpleQueue) -> None:
    while (job := inbox.get()) is not None:
        kernel, args = job
        kernel(index, *args)
        del job, kernel, args  # an idle thread must not keep a model's weights and caches alive
