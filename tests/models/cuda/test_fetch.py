"""Tables on their way to the host, with stand-ins for pinned memory, streams and events."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.models.cuda_executor.fetch import Fetch, Send  # noqa: E402

SECOND = torch.device("cuda:1")


@pytest.fixture
def waited(monkeypatch):
    """The streams whose work was waited for, each the number of its device; the current device is the first."""
    streams, empty = [], torch.empty

    class Event:
        stream = None

        def record(self, stream=0):
            self.stream = stream

        def query(self):
            return bool(streams)

        def synchronize(self):
            if self.stream is not None:
                streams.append(self.stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: 0 if device is None else device.index)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **options: empty(*size, **options))
    return streams


def test_a_copy_is_waited_for_on_the_stream_of_its_own_device(waited):
    table = torch.arange(6, dtype=torch.float64).view(3, 2)
    [copy] = Fetch(SECOND)(table).wait()
    assert copy.tolist() == table.tolist()
    assert waited == [1]


def test_tables_of_any_format_are_waited_for_together(waited):
    tables = (
        torch.rand(3, 2, dtype=torch.float64),
        torch.rand(5, 7),
        torch.arange(3, dtype=torch.int32),
        torch.rand(0, 4),
    )
    fetch = Fetch(SECOND)
    first = fetch(*tables).wait()
    for _ in range(3):
        fetch(*(table + 1 for table in tables)).wait()
    for copy, table in zip(first, tables, strict=True):
        assert copy.shape == tuple(table.shape) and (copy == table.numpy()).all()
    assert waited == [1] * 4


def test_any_number_of_copies_are_on_their_way_at_once(waited):
    fetch = Fetch(SECOND)
    tables = [torch.full((2, 2), float(number), dtype=torch.float64) for number in range(5)]
    for copy, table in zip([fetch(table) for table in tables], tables, strict=True):
        assert copy.wait()[0].tolist() == table.tolist()


def test_memory_of_copies_that_arrived_or_are_not_wanted_is_used_again(waited, monkeypatch):
    allocated, empty = [], torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **how: allocated.append(size) or empty(*size, **how))
    fetch = Fetch(SECOND)
    held = fetch(torch.full((2, 2), 7.0))
    for number in range(6):
        copy = fetch(torch.full((2, 2), float(number)))
        if number % 2:
            copy.wait()
        del copy
    assert len(allocated) == 2
    assert held.wait()[0].tolist() == [[7.0, 7.0]] * 2


def test_few_sizes_of_memory_are_allocated(waited, monkeypatch):
    allocated, empty = [], torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **how: allocated.append(size) or empty(*size, **how))
    fetch = Fetch(SECOND)
    for size in (100, 70_000, 100, 100_000, 200_000, 70_000):
        assert len(fetch(torch.zeros(size, dtype=torch.uint8)).wait()[0]) == size
    assert allocated == [(1 << 16,), (1 << 17,), (1 << 18,)]


def test_a_copy_says_whether_it_is_there(waited):
    fetched = Fetch(SECOND)(torch.zeros(3))
    assert not fetched.is_there
    fetched.wait()
    assert fetched.is_there


def test_a_large_table_and_one_that_is_here_are_copied_at_once(waited):
    table = torch.zeros(9_000_000, 1, dtype=torch.float64)
    for device in (SECOND, torch.device("cpu")):
        copy = Fetch(device)(table)
        assert not copy.is_there
        table[0] += 1
        assert copy.wait()[0][0] == table[0] - 1
    assert waited == []


def test_small_arrays_are_sent_without_waiting_for_the_device(waited, monkeypatch):
    copied, to = [], torch.Tensor.to

    def sent(tensor, *where, non_blocking=False):
        copied.append(non_blocking)
        return to(tensor, "cpu").clone()

    monkeypatch.setattr(torch.Tensor, "to", sent)
    send, given = Send(SECOND), (np.arange(3), np.array([[1.5]]), np.zeros(0), np.zeros(1 << 20))
    for group in range(3):
        send.begin()
        assert [(send(values + group) == torch.from_numpy(values + group)).all() for values in given] == [True] * 4
    assert copied == [True, True, False, False] * 3
    assert waited[-1] == 1  # the third group waited for the first one's copies, on the device's stream
