"""What may be written to is asked before long work begins, and files are written whole or not at all."""

import os

import pytest

from paceline.disk import check_file, in_one_move
from paceline.errors import InvalidParameter


def test_a_file_that_is_there_is_asked_itself(tmp_path, monkeypatch):
    """Its folder may be closed, as that of /dev/stdout is."""
    path = tmp_path / "there.txt"
    path.write_text("kept")
    monkeypatch.setattr("pathlib.Path.touch", lambda *_: pytest.fail("nothing may be put into the folder"))
    assert check_file("output", path) == path and path.read_text() == "kept"
    assert check_file("output", type(path)("/dev/stdout"))


def test_folders_are_made_and_what_cannot_be_written_is_refused(tmp_path, monkeypatch):
    assert check_file("output", tmp_path / "new" / "file.txt").parent.is_dir()
    with pytest.raises(InvalidParameter, match=r"output: .* is a folder"):
        check_file("output", tmp_path)
    with pytest.raises(InvalidParameter, match=r"output: .* cannot be written"):
        check_file("output", type(tmp_path)("/dev/null/file.txt"))
    assert os.listdir(tmp_path / "new") == []


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with in_one_move(path) as file:
        file.write_text("first")
        assert not path.exists()
    assert path.read_text() == "first"
    with pytest.raises(RuntimeError, match="half"), in_one_move(path) as file:
        file.write_text("sec")
        raise RuntimeError("half way")
    assert path.read_text() == "first" and os.listdir(path.parent) == ["file.txt"]
