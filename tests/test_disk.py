"""What may be written to is asked before long work begins."""

import os

import pytest

from paceline.disk import check_file
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
