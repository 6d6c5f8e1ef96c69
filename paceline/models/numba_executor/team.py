"""A team of threads that run one pass together.

Numba's own parallel regions cost microseconds each and a pass has hundreds of them. Here every thread runs the whole
pass as one compiled call without the GIL; between phases threads meet at a barrier (a counter in memory), and inside a
phase they take chunks of work from a shared counter, so that a slow core delays the others little. The result of a
chunk does not depend on the thread that computes it.

To wake a thread takes 0.1 ms, most of it until its processor has left its sleep, and then it waits for the GIL. A pass
of a small model takes 2.5 ms, and the next comes a quarter of a millisecond later: so after a pass a thread waits
actively for a while (`wait_actively`). In compiled code it watches the team's job slot, an array in which the leader
puts the next pass (`share`). A thread that sleeps when a pass is announced is woken through Python.

Not for what is computed (`forward.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from paceline.errors import EngineDead, PacelineError
from paceline.models.compiled.disk import keep_on_disk
from paceline.models.compiled.kernel import call_at, entry, kernel, machine_code
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.reference import refer
from paceline.models.numba_executor.sources import kernel_sources
from paceline.models.processors import usable_cores

SPINS_BEFORE_YIELD = 4000
PATIENCE = 2_000_000
"""Nanoseconds that a thread without work waits actively; steps of an engine are shorter. A team of more threads than
cores does not wait so: its members would take the processor from each other."""
_I64 = ir.IntType(64)
_LINE = v.CACHE_LINE // 8
_POSTED, _CODE, _ARGS, _DONE, _ACTIVE = 0, _LINE, _LINE + 1, 3 * _LINE, 4 * _LINE
_PENDING, _CLOSED = 2 * _LINE, 2 * _LINE + 1
"""Places in a job slot: passes posted; the code of the latest and its arguments; how often a member has finished one;
a cache line for each thread from the leader's on, whether it waits actively; whether a pass was announced, and whether
the team was closed."""
_YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
"""The system's function without arguments that lets another thread of this processor run."""


@intrinsic
def fetch_add(typingctx, counters, index, amount):
    """Atomically add `amount` to counters[index]; returns the value before."""

    def emit(context, builder, sig, args):
        pointer = v.element_pointer(context, builder, counters, args[0], args[1])
        return builder.atomic_rmw("add", pointer, args[2], "seq_cst")

    return types.int64(counters, types.intp, types.int64), emit


@intrinsic
def acquire(typingctx, counters, index):
    """Atomic load of counters[index]."""

    def emit(context, builder, sig, args):
        pointer = v.element_pointer(context, builder, counters, args[0], args[1])
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(counters, types.intp), emit


@intrinsic
def exchange(typingctx, array, index, value):
    """Atomically array[index] = value; nothing before it is read or written after it, nor the other way round."""

    def emit(context, builder, sig, args):
        pointer = v.element_pointer(context, builder, array, args[0], args[1])
        return builder.atomic_rmw("xchg", pointer, args[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), emit


@intrinsic
def _post(typingctx, slot, follow, args):
    """Have every other member run `follow(thread, args)`, with `args` a reference."""
    arguments = types.int64, args
    found = follow.get_call_type(typingctx, arguments, {})

    def emit(context, builder, sig, values):
        compiled = follow.dispatcher.get_compile_result(found)
        function = context.declare_function(builder.module, compiled.fndesc)
        context.active_code_library.add_linking_library(compiled.library)
        for place, pointer in ((_CODE, function), (_ARGS, values[2])):
            address = builder.ptrtoint(pointer, _I64)
            builder.store(address, v.element_pointer(context, builder, slot, values[0], _I64(place)))
        posted = v.element_pointer(context, builder, slot, values[0], _I64(_POSTED))
        builder.atomic_rmw("add", posted, _I64(1), "seq_cst")
        return context.get_dummy_value()

    return types.void(slot, follow, args), emit


@intrinsic
def _follow(typingctx, code, thread, args):
    """Call what was posted: `code` and `args` are addresses."""

    def emit(context, builder, sig, values):
        arguments = types.int64, types.voidptr
        pointer = builder.inttoptr(values[2], context.get_value_type(types.voidptr))
        call_at(context, builder, arguments, values[0], [values[1], pointer])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


@intrinsic
def yield_processor(typingctx):
    """Let another thread of this processor run."""

    def emit(context, builder, sig, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, _YIELD), [])
        return context.get_dummy_value()

    return types.void(), emit


_CLOCK = {"win32": "GetTickCount64", "darwin": 6}.get(sys.platform, 1)
"""Number of the monotonic clock of ``clock_gettime``; on Windows, a function that counts milliseconds."""


@intrinsic
def nanoseconds(typingctx):
    """A monotonic clock."""

    def of_windows(context, builder, sig, args):
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I64, []), _CLOCK)
        return builder.mul(builder.call(function, []), _I64(1_000_000))

    def of_posix(context, builder, sig, args):
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), _I64.as_pointer()])
        function = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        seconds = cgutils.alloca_once(builder, _I64, size=2)
        builder.call(function, [ir.IntType(32)(_CLOCK), seconds])
        rest = builder.load(builder.gep(seconds, [_I64(1)]))
        return builder.add(builder.mul(builder.load(seconds), _I64(1_000_000_000)), rest)

    return types.int64(), of_windows if sys.platform == "win32" else of_posix


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


@kernel
def share(slot, follow, args):
    """`follow(thread, reference)` on this thread and every other member, with a reference to the tuple `args`.

    It returns when all have finished: nobody reads the arguments any more then.
    """
    reference = refer(args)
    _post(slot, follow, reference)
    follow(0, reference)
    all_done, spins = slot[_POSTED] * ((len(slot) - _ACTIVE) // _LINE - 1), 0
    while acquire(slot, _DONE) < all_done:
        spins += 1
        if spins > SPINS_BEFORE_YIELD:
            yield_processor()


@entry
def wait_actively(thread, slot, followed, patience):
    """Run what is posted, and return once nothing has been for a while.

    Args:
        thread: number of this member, 1 or more.
        slot: of the team.
        followed: passes that this member has run. Returns the new number.
        patience: nanoseconds to wait for the next.
    """
    since, own, idle = np.int64(0), _ACTIVE + thread * _LINE, 0
    exchange(slot, own, 1)
    while True:
        if acquire(slot, _POSTED) > followed:
            _follow(slot[_CODE], thread, slot[_ARGS])
            fetch_add(slot, _DONE, 1)
            followed, idle = followed + 1, 0
            continue
        idle += 1
        if idle < SPINS_BEFORE_YIELD:
            continue
        if idle == SPINS_BEFORE_YIELD:
            since = nanoseconds()
        yield_processor()
        is_over = acquire(slot, _CLOSED) > 0 or nanoseconds() - since >= patience
        if is_over and acquire(slot, _PENDING) == 0:
            exchange(slot, own, 0)
            if fetch_add(slot, _PENDING, 0) == 0:  # an announcement in between may have found this thread active
                return followed
            exchange(slot, own, 1)
            idle = 0


@entry
def _announce(slot):
    """Keep members from going to sleep before a pass is posted; returns how many sleep already."""
    exchange(slot, _PENDING, 1)
    asleep = 0
    for place in range(_ACTIVE + _LINE, len(slot), _LINE):
        asleep += 1 - fetch_add(slot, place, 0)
    return asleep


@cache
def _compiled() -> tuple[Callable[..., int], Callable[..., int]]:
    """`_announce` and `wait_actively`, kept on disk until a kernel changes."""
    slot = new_slot()
    announce, wait = (keep_on_disk(function, kernel_sources()) for function in (_announce, wait_actively))
    return machine_code(announce, slot), machine_code(wait, 1, slot, 0, 0)


def new_slot(num_threads: int = 1) -> np.ndarray:
    """A job slot of so many threads; nothing was posted."""
    return np.zeros(_ACTIVE + num_threads * _LINE, np.int64)


class Team:
    """Threads that run one compiled function together, this thread among them.

    Args:
        num_threads: members; by default the physical cores that this process may use.

    Raises:
        PacelineError: the system starts no more threads; those that had started are ended.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        cores = usable_cores()
        self.num_threads = num_threads or cores
        self._slot, patience = new_slot(self.num_threads), PATIENCE if self.num_threads <= cores else 0
        self._inboxes = [queue.SimpleQueue() for _ in range(self.num_threads - 1)]
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._end = weakref.finalize(self, _end, self._inboxes, self._slot)
        self._process = os.getpid()
        for index, inbox in enumerate(self._inboxes, start=1):
            member = {"target": _work, "args": (index, inbox, self._slot, patience), "name": f"paceline-{index}"}
            try:
                threading.Thread(**member, daemon=True).start()
            except RuntimeError as error:
                self._end()
                problem = f"thread {index + 1} of {self.num_threads} cannot start ({error})"
                raise PacelineError(f"num_threads: {problem}; ask for fewer") from None

    def run(self, kernel: Callable, *args: object) -> None:
        """kernel(slot, args), an entry that has all members work by `share`.

        Runs that several threads ask for come one after the other.

        Raises:
            EngineDead: the team is closed, or its threads are in the process that this one was forked from; the kernel
            would wait for its members forever.
        """
        with self._turn:
            try:
                self._gather()
                kernel(self._slot, args)
            finally:
                self._slot[_PENDING] = 0

    def _gather(self) -> None:
        """Have every member wait actively, or wake up to do so, until the run has ended."""
        if os.getpid() != self._process:
            raise EngineDead("a process that was forked has none of its threads: load the model in the new process")
        announce, _ = _compiled()
        with self._lock:  # all members are woken, or the end
            if not self._end.alive:
                raise EngineDead("the threads of this model have ended: it is closed; make a new one")
            if not announce(self._slot):
                return
            for index, inbox in enumerate(self._inboxes, start=1):
                if not self._slot[_ACTIVE + index * _LINE]:
                    inbox.put(True)

    def close(self) -> None:
        """End the threads; also done when nobody holds the team any more."""
        with self._lock:
            self._end()


def _end(inboxes: Sequence[queue.SimpleQueue], slot: np.ndarray) -> None:
    slot[_CLOSED] = 1
    for inbox in inboxes:
        inbox.put(False)


def _work(index: int, inbox: queue.SimpleQueue, slot: np.ndarray, patience: int) -> None:
    followed = 0
    while inbox.get():
        _, wait = _compiled()
        followed = wait(index, slot, followed, patience)
