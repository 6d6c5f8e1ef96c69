"""Checkpoints: an error names a damaged one, and a failed write leaves the previous one."""

import errno

import pytest
import torch

from paceline.disk import check_folder
from paceline.errors import CorruptWeights, InvalidParameter
from paceline.training.run.checkpoint import alone_in, read_checkpoint, write_checkpoint


@pytest.mark.parametrize("size", [0, 10, 700])
def test_a_checkpoint_that_was_cut_short_is_named(tmp_path, size):
    write_checkpoint(tmp_path, {"net": torch.zeros(1000)})
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CorruptWeights, match=r"checkpoint.pt: cannot be read .*delete it to begin anew"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("error", "said"),
    [(OSError(errno.ENOSPC, "No space left"), "the disk is full"), (RuntimeError("file write failed"), "write failed")],
)
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch, error, said):
    write_checkpoint(tmp_path, {"step": 3})

    def full(state, path):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(InvalidParameter, match=rf"^work: .*{said}.*still there"):
        write_checkpoint(tmp_path, {"step": 4})
    assert read_checkpoint(tmp_path) == {"step": 3}


def test_folders_are_tried(tmp_path):
    assert list(check_folder("output", tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(InvalidParameter, match=r"^output: .*cannot be written"):
        check_folder("output", tmp_path / "file")


def test_two_runs_in_one_folder_are_refused(tmp_path):
    folder = tmp_path / "new"
    with alone_in(folder):
        with pytest.raises(InvalidParameter, match="used by another run"), alone_in(folder):
            pass
        with alone_in(tmp_path / "other"):
            pass
    with alone_in(folder):  # the first one has ended
        pass


def test_a_folder_that_cannot_be_locked_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidParameter, match="file cannot be written"), alone_in(tmp_path / "file"):
        pass
