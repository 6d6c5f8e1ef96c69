"""`GraphCapture`: records the work of a pass on a device, so that it can be replayed with one call.

A graph reads and writes the tensors it was recorded with: the caller fills its inputs before a replay, and reads its
outputs before the next one. On a GPU a graph is a CUDA graph. On a CPU, and in tests, the function itself is run and
its results are written to the same tensors, so that outputs that are kept too long are overwritten there as well.
"""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]
Graph = Callable[[], Outputs]
"""Replays recorded work; it returns the same tensors every time."""
_recording = threading.Lock()
"""Held while a graph is recorded: torch allows one capture in a process, on whatever device, and caches cannot be
emptied during one, which torch does before each."""


class GraphCapture(Protocol):
    """Records functions that launch work on one device."""

    def __call__(self, run: Callable[[], Outputs]) -> Graph:
        """Record the work that `run` launches as a graph.

        `run` is called, possibly more than once, with all its inputs in place. It must not synchronise with the device,
        and its inputs must be tensors that live as long as the graph.
        """
        ...


class CudaGraphs:
    """Records with `torch.cuda.CUDAGraph`; all graphs share one memory pool, since only one runs at a time.

    Each device has its own capture stream: torch's default capture stream belongs to the first device that recorded,
    and work of another device would be executed rather than recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._aside = torch.cuda.Stream(device)

    def __call__(self, run: Callable[[], Outputs]) -> Graph:
        """See `GraphCapture`; a first run before recording compiles kernels."""
        aside, current = self._aside, torch.cuda.current_stream(self._device)
        aside.wait_stream(current)
        try:
            with torch.cuda.stream(aside):
                run()
        finally:
            current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        how = {"pool": self._pool, "stream": aside, "capture_error_mode": "thread_local"}
        with _recording, _undisturbed(current), torch.cuda.graph(graph, **how):
            outputs = run()

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay


@contextmanager
def _undisturbed(current: torch.cuda.Stream) -> Iterator[None]:
    """What holds during a recording; afterwards, also when it failed, `current` is this thread's stream again."""
    with _nothing_freed(), _workspaces_of_its_own(), torch.cuda.stream(current):
        yield


@contextmanager
def _nothing_freed() -> Iterator[None]:
    """Keep Python from collecting cycles: a graph that is freed during a recording makes that fail (pytorch#161037)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _workspaces_of_its_own() -> Iterator[None]:
    """Let cuBLAS allocate its workspace in the graphs' pool, where it lives as long as they do.

    One from before lies outside, and newer versions of torch free those of a stream when any graph that was recorded
    there is freed, although all others still write to them (pytorch#193402). The second call leaves the pool free to
    end with its graphs.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


class EagerGraphs:
    """A stand-in for devices without graphs.

    Attributes:
        num_captured: number of graphs recorded so far.
    """

    def __init__(self) -> None:
        self.num_captured = 0

    def __call__(self, run: Callable[[], Outputs]) -> Graph:
        """See `GraphCapture`."""
        self.num_captured += 1
        outputs = tuple(torch.empty_like(tensor) for tensor in run())

        def replay() -> Outputs:
            for kept, found in zip(outputs, run(), strict=True):
                kept.copy_(found)
            return outputs

        return replay


def graphs_of(device: torch.device) -> GraphCapture:
    """The `GraphCapture` for `device`."""
    return CudaGraphs(device) if device.type == "cuda" else EagerGraphs()


def wait_for(device: torch.device) -> None:
    """Wait until all work that was launched on `device` has ended."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release_unused_memory() -> None:
    """Give memory that torch keeps for later back to the device."""
    with _recording:
        torch.cuda.empty_cache()


def on_device(device: torch.device) -> AbstractContextManager:
    """A context in which `device` is current: Triton launches on the current device, whatever its arguments."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
