"""What may be written to is asked before long work begins, and files are written whole or not at all."""

import errno
import os

import pytest

from paceline.disk import check_file, check_placed_file, in_one_move, writing
from paceline.errors import InvalidParameter


def test_a_file_that_is_there_is_asked_itself(tmp_path, monkeypatch):
    """Its folder may be closed, as that of /dev/stdout is."""
    path = tmp_path / "there.txt"
    path.write_text("kept")
    monkeypatch.setattr("pathlib.Path.touch", lambda *_: pytest.fail("nothing may be put into the folder"))
    assert check_file("output", path) == path and path.read_text() == "kept"
    assert check_file("output", type(path)("/dev/stdout"))


def test_a_misspelt_folder_is_not_made(tmp_path):
    with pytest.raises(InvalidParameter, match=r"output: the folder .*new does not exist"):
        check_placed_file("output", tmp_path / "new" / "file.txt")
    assert os.listdir(tmp_path) == []
    assert check_placed_file("output", tmp_path / "file.txt") == tmp_path / "file.txt"


def test_folders_are_made_and_what_cannot_be_written_is_refused(tmp_path):
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


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file.txt")
    for text in ("first", "second"):
        with in_one_move(tmp_path / "link") as file:
            file.write_text(text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "file.txt").read_text() == text
    assert sorted(os.listdir(tmp_path)) == ["file.txt", "link"]


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    """A device would be lost: /dev/null, written to as root."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with in_one_move(tmp_path / "pipe") as file:
        file.write_text("said")
    assert os.read(reader, 9) == b"said" and (tmp_path / "pipe").is_fifo() and os.listdir(tmp_path) == ["pipe"]
    os.close(reader)


@pytest.mark.parametrize(
    ("code", "remedy"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "; name another place")]
)
def test_space_is_asked_for_where_space_is_missing(tmp_path, code, remedy):
    with pytest.raises(InvalidParameter, match=remedy), writing("output", tmp_path):
        raise OSError(code, "no")
