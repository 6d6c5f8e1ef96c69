"""Files and folders that the user named: a disk that is full or closed to us becomes one line that says what to do.

Long work asks before it begins, so that nothing is lost at its end, and goes on with the file it was writing. Not for
what is in a file.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import InvalidParameter, first_line


@contextmanager
def writing(field: str, place: Path) -> Iterator[None]:
    """A context that writes to `place`, a file or folder that the user named with `field`.

    Raises:
        InvalidParameter: it cannot be written. torch tells of a full disk by a RuntimeError.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        reason = "the disk is full" if is_full else first_line(error)
        remedy = "free some space or name another place; what was kept before is still there"
        raise InvalidParameter(field, f"{place} cannot be written ({reason})", remedy) from None


@contextmanager
def in_one_move(path: Path) -> Iterator[Path]:
    """A context that writes the file it gives, which becomes `path` at the end: readers never see half of it.

    What went wrong in between leaves `path` as it was. Folders are made where they are missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"partial-{os.getpid()}-{path.name}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def check_folder(field: str, folder: Path) -> Path:
    """`folder`, which is made when missing. Raises InvalidParameter where nothing can be written into it."""
    with writing(field, folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".paceline-can-write"
        probe.touch()
        probe.unlink(missing_ok=True)
    return folder


def check_file(field: str, path: Path) -> Path:
    """`path`, a file whose folder is made when missing. Raises InvalidParameter where it cannot be written."""
    if path.is_dir():
        raise InvalidParameter(field, f"{path} is a folder", "name a file")
    if path.exists() and os.access(path, os.W_OK):  # also where nothing else may be put into its folder: /dev/stdout
        return path
    check_folder(field, path.absolute().parent)
    return path


def whole_lines(path: Path) -> list[str]:
    """Lines of a file that is appended to; one that was cut off at its end is left out (see `cut_off`).

    Only newlines end them: JSON keeps others (U+2028) in its strings.
    """
    return path.read_bytes().decode("utf-8", errors="replace").split("\n")[:-1]


def cut_off(path: Path) -> None:
    """Remove a last line that was not written whole, so that the file can be gone on with."""
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(data.rfind(b"\n") + 1)
