"""`GraphCapture`: records what a pass does on a device, so that it can be run again with one call.

A graph reads and writes the tensors it was recorded with: whoever runs it again fills its inputs first, and reads its
outputs before the next run. On a GPU a graph is a CUDA graph; on a CPU, and in tests, the function itself is run and
its results are written where the first ones were, so that outputs that are kept too long are as wrong there as on a
GPU.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]
Graph = Callable[[], Outputs]
"""Runs what was recorded; the tensors it returns are the same ones every time."""


class GraphCapture(Protocol):
    """Records functions that launch work on one device."""

    def __call__(self, run: Callable[[], Outputs]) -> Graph:
        """What `run` launches, as a graph.

        `run` is called, perhaps more than once, with all its inputs in place. It must wait for nothing on the device,
        and take its inputs from tensors that live as long as the graph.
        """
        ...


class CudaGraphs:
    """`torch.cuda.CUDAGraph`, one pool of memory for all graphs: only one runs at a time.

    They are recorded on a stream of the device's own: torch's stream for recordings is one for the whole process, on
    the device that first recorded, and work of another device would run at once in place of being recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._aside = torch.cuda.Stream(device)

    def __call__(self, run: Callable[[], Outputs]) -> Graph:
        """See `GraphCapture`; a first run compiles kernels and gives libraries their workspace, before recording."""
        aside, current = self._aside, torch.cuda.current_stream(self._device)
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            run()
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=aside, capture_error_mode="thread_local"):
            outputs = run()

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay


class EagerGraphs:
    """A stand-in for devices without graphs.

    Attributes:
        num_captured: graphs made so far.
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
    """The graphs that `device` has."""
    return CudaGraphs(device) if device.type == "cuda" else EagerGraphs()


def on_device(device: torch.device) -> AbstractContextManager:
    """While it is on, kernels and graphs go to `device`: Triton asks for the current one, whatever its arguments."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
