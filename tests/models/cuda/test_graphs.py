"""Graphs of a GPU, with stand-ins for its streams and captures."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from paceline.models.cuda_executor.graphs import CudaGraphs  # noqa: E402


@pytest.fixture
def on_gpu(monkeypatch):
    """Stand-ins for torch's streams, graphs and workspaces; what happens to them, in order."""
    events = []

    class Stream:
        def __init__(self, device=None):
            self.device = device

        def wait_stream(self, other):
            assert other is not self
            events.append("wait")

    class Graph:
        def replay(self):
            pass

    @contextmanager
    def stream(_):
        events.append("enter stream")
        yield
        events.append("leave stream")

    @contextmanager
    def capture(graph, **how):
        events.append("capture")
        yield
        events.append("end")

    stand_ins = {"Stream": Stream, "current_stream": Stream, "stream": stream, "CUDAGraph": Graph, "graph": capture,
                 "graph_pool_handle": object}  # fmt: skip
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    workspaces = "_cuda_clearCublasWorkspaces"  # not in builds for CPUs
    monkeypatch.setattr(torch._C, workspaces, lambda: events.append("clear workspaces"), raising=False)
    return events


@pytest.fixture
def captures(on_gpu, monkeypatch):
    """Numbers of captures under way when one begins. The first one waits for a second, which is given time to come."""
    under_way, found, came = [], [], threading.Event()

    @contextmanager
    def capture(graph, **how):
        under_way.append(graph)
        found.append(len(under_way))
        if len(found) == 1:
            came.wait(0.3)
        else:
            came.set()
        yield
        under_way.remove(graph)

    monkeypatch.setattr(torch.cuda, "graph", capture)
    return found


def test_one_graph_is_recorded_at_a_time(captures):
    graphs = [CudaGraphs(torch.device("cuda", number)) for number in range(2)]
    outputs = [(torch.full((1,), float(number)),) for number in range(2)]
    with ThreadPoolExecutor(2) as threads:
        replays = list(threads.map(lambda graph, output: graph(lambda: output), graphs, outputs))
    assert captures == [1, 1]
    assert [replay() for replay in replays] == outputs


def test_workspaces_lie_in_the_pool_and_nothing_is_collected_while_a_graph_is_recorded(on_gpu):
    collects = []

    def run():
        collects.append(gc.isenabled())
        return ()

    CudaGraphs(torch.device("cuda", 0))(run)
    assert collects == [True, False] and gc.isenabled()
    recording = on_gpu[on_gpu.index("clear workspaces") :]
    assert recording == [
        "clear workspaces", "enter stream", "capture", "end", "leave stream", "clear workspaces",
    ]  # fmt: skip


def test_a_first_run_that_fails_leaves_no_work_that_nobody_waits_for(on_gpu):
    def run():
        raise MemoryError

    with pytest.raises(MemoryError):
        CudaGraphs(torch.device("cuda", 0))(run)
    assert on_gpu == ["wait", "enter stream", "wait"]


def test_a_recording_that_fails_leaves_everything_as_it_was(on_gpu):
    calls = []

    def run():
        calls.append(gc.isenabled())
        if len(calls) == 2:
            raise RuntimeError
        return ()

    with pytest.raises(RuntimeError):
        CudaGraphs(torch.device("cuda", 0))(run)
    assert gc.isenabled() and on_gpu[-1] == "clear workspaces"
    assert CudaGraphs(torch.device("cuda", 0))(run)() == ()
