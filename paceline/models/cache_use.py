"""When converted weights and compiled kernels in the cache were last used, so that nobody keeps what nobody needs.

Either is made again when it is needed. The time is that of the last change of a file or folder: file systems seldom
record when one was read. Not for downloads, which only their user deletes.
"""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

DAY = 86_400
"""Seconds."""


def note_use(path: Path) -> None:
    """Record that `path` is used today; nothing where the cache cannot be written."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > DAY:
            os.utime(path)


def unused(cache: Path, days: int) -> list[Path]:
    """Folders of converted weights and files of kernels in the cache folder `cache` not used for more than `days`."""
    found = [*(cache / "converted").glob("*"), *(cache / "kernels").glob("*")]
    return sorted(path for path in found if time.time() - _changed(path) > days * DAY)


def delete(path: Path) -> None:
    """Delete a folder or file; one that is gone already is fine. Raises OSError where it cannot be deleted."""
    with suppress(FileNotFoundError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process deleted it
        return time.time()
