"""The cuda executor over two ranks, one of which fails: rank 0 says so, does not wait for ever, and ends the others."""

import os
import signal
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.errors import InvalidParameter, WorkerDied  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.cuda_executor.parallel import launch_model, leading  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.torch_executor.parallel.links import Links  # noqa: E402
from paceline.models.torch_executor.parallel.messages import Command, integers  # noqa: E402
from tests.fakes import RandomCheckpoint, small_config  # noqa: E402

from .batches import TREE, tokens_of  # noqa: E402
from .threads import on_threads  # noqa: E402

CHECKPOINT = RandomCheckpoint(small_config(num_hidden_layers=2))


def test_kernels_over_two_processes_until_one_is_killed():
    """In float16 by Triton's interpreter, a row alone and in a tree; an end is noticed where no pass is running."""
    pytest.importorskip("triton")
    rows = build_rows([Part((1,), 0, tokens_of(len(TREE)), TREE)])
    how = {"device": "cpu", "dtype": "float16", "attention": "triton", "deterministic": True}
    with launch_model(CHECKPOINT, 2, **how, timeout=60) as model:
        cache = model.new_cache(2)
        root = model.forward(build_rows([Part((1,), 0, tokens_of(1))]), cache).logits[0]
        ours = model.forward(rows, cache).logits
        assert np.array_equal(root, ours[0])
        reference = CudaModel(CHECKPOINT, "cpu", "float16", attention="by_position")
        theirs = reference.forward(rows, reference.new_cache(2)).logits
        assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.999
        model.ranks.guard(60)
        [pid] = model.ranks.workers.pids
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        with pytest.raises(WorkerDied, match="rank 1 was ended by signal 9"):
            while time.monotonic() < deadline:
                model.ranks.check()
                time.sleep(0.02)
        with pytest.raises(WorkerDied, match="earlier failure"):
            model.forward(rows, cache)
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize("degrees", [(2, 1), (1, 2)], ids=["shares", "stages"])
def test_an_error_on_another_rank_is_told_and_ends_the_model(degrees):
    model = on_threads(CHECKPOINT, timeout=2, degrees=degrees)
    with model.ranks.telling(Command.MOVE, integers(99), integers(1), integers(2)):
        pass
    with pytest.raises(WorkerDied, match="KeyError: 99"):
        model.new_cache(1).read([0])
    with pytest.raises(WorkerDied, match="earlier failure"):
        model.new_cache(1)
    model.close()


def test_a_stage_that_does_not_take_its_turn_in_a_pass_counts_as_dead(monkeypatch):
    model, rows = on_threads(CHECKPOINT, timeout=1, degrees=(1, 2)), build_rows([Part((0,), 0, tokens_of(3))])
    cache = model.new_cache(1)
    model.forward(rows, cache)
    monkeypatch.setattr(model.peers, "after", lambda x: None)  # the second stage waits for hidden states
    with pytest.raises(WorkerDied, match="lost another rank"):
        model.forward(rows, cache)
    with pytest.raises(WorkerDied, match="earlier failure"):
        model.forward(rows, cache)
    model.close()


def test_a_rank_that_does_not_answer_counts_as_dead():
    model = on_threads(CHECKPOINT)
    model.ranks.guard(0.2)
    with model.ranks.timed():
        pass
    time.sleep(0.4)
    model.ranks.check()
    with pytest.raises(WorkerDied, match=r"no answer for 0\.2 s"), model.ranks.checked():
        time.sleep(0.8)
    model.close()


def test_work_that_needs_the_other_ranks_ends_before_they_do(monkeypatch):
    model, waited = on_threads(CHECKPOINT), []

    def wait(device):
        model.ranks.check()  # the others still run
        waited.append(device)

    monkeypatch.setattr(leading, "wait_for", wait)
    model.close()
    model.close()
    assert waited == [model.device]
    with pytest.raises(WorkerDied, match="closed"):
        model.new_cache(1)


def test_graphs_that_hold_collectives_are_gone_before_the_ranks_end(monkeypatch):
    rows, left = build_rows([Part((0,), 0, tokens_of(3))]), []
    model, kept = on_threads(CHECKPOINT), []
    for view in (model, model.with_layers([1])):
        kept.append(view.new_cache(1))
        view.forward(rows, kept[-1])
    assert all(cache.graphs for cache in kept)
    close = model.ranks.close
    monkeypatch.setattr(model.ranks, "close", lambda tell: left.extend(kept[0].graphs | kept[1].graphs) or close(tell))
    model.close()
    assert not left


def test_groups_of_ranks_are_ended_side_by_side():
    """The end of one may wait for graphs whose work waits for the other."""
    has_ended, ended = threading.Event(), []

    class Group:
        def __init__(self, name, waits):
            self._name, self._waits = name, waits

        def abort(self):
            if self._waits and not has_ended.wait(10):
                raise RuntimeError("timed out")
            ended.append(self._name)
            has_ended.set()

    links = Links.__new__(Links)
    links._peers, links._data = Group("peers", True), Group("data", False)
    links.abort()
    deadline = time.monotonic() + 10
    while len(ended) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == ["data", "peers"]


WHOLE = small_config(qk_norm=True, qk_norm_over="all")


@pytest.mark.parametrize(
    ("field", "options"), [("tensor_parallel_size", {"checkpoint": RandomCheckpoint(WHOLE)}),
                           ("deterministic", {"attention": "sdpa", "deterministic": True})]
)  # fmt: skip
def test_what_cannot_be_shared_is_refused(field, options):
    with pytest.raises(InvalidParameter) as caught:
        on_threads(**{"checkpoint": CHECKPOINT} | options)
    assert caught.value.field == field


@pytest.mark.parametrize("found", [0, 1])
def test_missing_devices_are_told_before_a_dtype_is_chosen_for_them(found, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    with pytest.raises(InvalidParameter, match=f"need as many CUDA devices, {found} found"):
        launch_model(CHECKPOINT, 2, dtype="auto")
