"""Writing files and folders that the user named; a full or read-only disk becomes an error that says what to do.

Long operations check before they begin that their results can be written, and can resume a file that was cut off. Not
for the contents of files.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import InvalidParameter, first_line


@contextmanager
def writing(field: str, place: Path) -> Iterator[None]:
    """A context that writes to `place`, a file or folder that the user named with `field`.

    Raises:
        InvalidParameter: it cannot be written; raised for an OSError and for the RuntimeError of torch on a full disk.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        reason = "the disk is full" if is_full else first_line(error)
        remedy = "free some space or name another place" if is_full else "name another place"
        kept = "what was kept before is still there"
        raise InvalidParameter(field, f"{place} cannot be written ({reason})", f"{remedy}; {kept}") from None


@contextmanager
def in_one_move(path: Path) -> Iterator[Path]:
    """A context that yields a temporary file to write, and moves it to `path` at the end, atomically.

    After an error `path` is as it was. Missing parent folders are created. Of a link, the file that it leads to is
    replaced; what is there and is no file, such as a device, is written to directly.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path = path.resolve() if path.is_symlink() else path
    if is_device(path):
        yield path
        return
    partial = path.with_name(f"partial-{os.getpid()}-{path.name}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def is_device(path: Path) -> bool:
    """Whether what is at `path` is neither a file nor a folder: a device, or a pipe."""
    return path.exists() and not path.is_file() and not path.is_dir()


def check_folder(field: str, folder: Path) -> Path:
    """`folder`, created when missing. Raises InvalidParameter where nothing can be written into it."""
    with writing(field, folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".paceline-can-write"
        probe.touch()
        probe.unlink(missing_ok=True)
    return folder


def check_file(field: str, path: Path) -> Path:
    """`path`, a file whose folder is created when missing. Raises InvalidParameter where it cannot be written."""
    if path.is_dir():
        raise InvalidParameter(field, f"{path} is a folder", "name a file")
    if path.exists() and os.access(path, os.W_OK):  # its folder need not be writable: /dev/stdout
        return path
    check_folder(field, path.absolute().parent)
    return path


def check_placed_file(field: str, path: Path) -> Path:
    """As `check_file`, for a path typed at the command line: a folder that is missing is rather a slip than a wish."""
    folder = path.absolute().parent
    if not folder.exists():
        raise InvalidParameter(field, f"the folder {folder} does not exist", "make it, or name another place")
    return check_file(field, path)


def check_room(folder: Path, num_bytes: float) -> None:
    """Raise OSError (ENOSPC), as a write would, where the disk of `folder` has less than `num_bytes` free."""
    if shutil.disk_usage(folder).free < num_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def whole_lines(path: Path) -> list[str]:
    """The complete lines of a file that is appended to; a last line without newline is left out (see `cut_off`).

    Only newlines end a line: JSON strings may hold other line separators (U+2028).
    """
    return path.read_bytes().decode("utf-8", errors="replace").split("\n")[:-1]


def cut_off(path: Path) -> None:
    """Remove an incomplete last line, so that the file can be appended to."""
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(data.rfind(b"\n") + 1)
