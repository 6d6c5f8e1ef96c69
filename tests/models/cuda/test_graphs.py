"""Graphs of a GPU, with stand-ins for its streams and captures."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import pytest

torch = pytest.importorskip("torch")

from paceline.models.cuda_executor.graphs import CudaGraphs  # noqa: E402


@pytest.fixture
def captures(monkeypatch):
    """Numbers of captures under way when one begins. The first one waits for a second, which is given time to come."""
    under_way, found, came = [], [], threading.Event()

    class Stream:
        def __init__(self, device=None):
            self.device = device

        def wait_stream(self, other):
            assert other is not self

    class Graph:
        def replay(self):
            pass

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

    stand_ins = {"Stream": Stream, "current_stream": Stream, "stream": lambda _: nullcontext(), "CUDAGraph": Graph}
    for name, stand_in in (stand_ins | {"graph": capture, "graph_pool_handle": object}).items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return found


def test_one_graph_is_recorded_at_a_time(captures):
    graphs = [CudaGraphs(torch.device("cuda", number)) for number in range(2)]
    outputs = [(torch.full((1,), float(number)),) for number in range(2)]
    with ThreadPoolExecutor(2) as threads:
        replays = list(threads.map(lambda graph, output: graph(lambda: output), graphs, outputs))
    assert captures == [1, 1]
    assert [replay() for replay in replays] == outputs
