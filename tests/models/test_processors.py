"""Threads by physical cores: what Linux, containers, macOS and Windows say, and nothing."""

import os
import sys

import pytest

from paceline.errors import InvalidParameter
from paceline.models import processors
from paceline.models.processors import check_threads, count_cores, usable_cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A Linux machine of our own making: (siblings of every processor that may be used, the container's quota)."""

    def make(siblings, quota=None):
        for number, listed in siblings.items():
            folder = tmp_path / f"cpu{number}" / "topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{listed}\n")
        monkeypatch.setattr(processors, "_TOPOLOGY", tmp_path)
        monkeypatch.setattr(processors, "_QUOTA", tmp_path / "cpu.max")
        monkeypatch.setattr(processors, "_allowed_processors", lambda: set(siblings))
        if quota:
            (tmp_path / "cpu.max").write_text(quota)
        return usable_cores()

    return make


@pytest.mark.parametrize(
    ("siblings", "quota", "cores"),
    [
        ({0: "0", 1: "1"}, None, 2),
        ({0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}, None, 2),
        ({0: "0,4", 4: "0,4"}, None, 1),
        ({0: "0-1", 1: "0-1", 2: "2-3"}, None, 2),
        ({i: str(i) for i in range(8)}, "max 100000", 8),
        ({i: str(i) for i in range(8)}, "250000 100000", 3),
        ({i: str(i) for i in range(8)}, "10000 100000", 1),
        ({i: str(i) for i in range(8)}, "nonsense", 8),
    ],
)
def test_on_linux(machine, siblings, quota, cores):
    assert machine(siblings, quota) == cores


def test_a_machine_that_tells_no_cores(monkeypatch, tmp_path):
    monkeypatch.setattr(processors, "_TOPOLOGY", tmp_path)
    monkeypatch.setattr(processors, "_QUOTA", tmp_path / "none")
    monkeypatch.setattr(processors, "_allowed_processors", lambda: {3, 7, 9})
    assert usable_cores() == 3


@pytest.mark.parametrize(("platform", "told", "cores"), [("darwin", 6, 6), ("darwin", None, 12), ("win32", 4, 4),
                                                          ("win32", 0, 12), ("freebsd", None, 12)])  # fmt: skip
def test_elsewhere(monkeypatch, tmp_path, platform, told, cores):
    monkeypatch.setattr(processors, "_QUOTA", tmp_path / "none")
    monkeypatch.setattr(processors, "_allowed_processors", lambda: None)
    monkeypatch.setattr(processors, "_sysctl", lambda name: told)
    monkeypatch.setattr(processors, "_windows_cores", lambda: told)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    monkeypatch.setattr(sys, "platform", platform)
    assert usable_cores() == cores


def test_records_of_windows():
    def record(kind):
        return (3).to_bytes(8, "little") + kind.to_bytes(4, "little") + bytes(20)

    assert count_cores(b"".join(map(record, (0, 0, 2, 3, 0, 1)))) == 3
    assert count_cores(b"") == 0


def test_this_machine():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def test_many_more_threads_than_processors_are_refused(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    check_threads(None)
    check_threads(32)
    with pytest.raises(InvalidParameter, match="num_threads: 33 threads for 8 processors"):
        check_threads(33)
