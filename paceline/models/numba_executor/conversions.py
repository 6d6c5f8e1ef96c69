"""Where converted weights are kept: a folder per checkpoint, dtype and layout, filled once.

A conversion is written to a temporary folder that is renamed at its end, so a partial one is never used; a damaged one
(`models/intact.py`) is made again. Not for what is converted (`weights.py`).
"""

import errno
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import PacelineError, warn_safely
from paceline.models.cache_use import note_use
from paceline.models.intact import is_sealed, seal

LAYOUT = 7
"""Version of the packing; increase it to have weights converted again."""


def place_of(cache: Path, fingerprint: str, kind: str) -> Path:
    """The folder in the cache folder `cache` for weights of a checkpoint in one form."""
    return cache / "converted" / f"{fingerprint}-{kind}-{LAYOUT}"


def of_other_versions(cache: Path) -> list[Path]:
    """Folders of converted weights that this version does not read; they can be deleted."""
    found = (cache / "converted").glob("*-*")
    return sorted(each for each in found if (end := re.search(r"-(\d+)$", each.name)) and int(end[1]) != LAYOUT)


@contextmanager
def filled(folder: Path, fill: Callable[[Path], None]) -> Iterator[tuple[Path, bool]]:
    """(the folder with what `fill` writes, whether it stays): `folder`, or a temporary one if that cannot be written.

    Args:
        fill: writes into the folder it is given; not called where an earlier call did.

    Raises:
        PacelineError: the disk is full; nothing half-written stays behind.
    """
    if is_sealed(folder):
        note_use(folder)
        yield folder, True
        return
    reason = _closed(folder.parent)
    if reason is None:
        _remove(folder)
        _fill(folder, fill)
        yield folder, True
        return
    problem = f"converted weights are not kept, so the next start converts them again ({reason})"
    warn_safely(f"{problem}; set PACELINE_CACHE to a folder that can be written", UserWarning)
    with tempfile.TemporaryDirectory(prefix="paceline-") as aside:
        try:
            fill(Path(aside))
        except OSError as error:
            raise _disk_error(error, Path(aside)) from error
        yield Path(aside), False


def _closed(folder: Path) -> str | None:
    """Why nothing can be put into `folder`, which is created when missing; None where something can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return str(error) if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) else None
    return None


def _fill(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder beside `folder` and rename it at the end."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder.parent))
    except OSError as error:
        raise _disk_error(error, folder) from error
    try:
        fill(temporary)
        seal(temporary)
        temporary.rename(folder)
    except OSError as error:
        if not folder.exists():  # another process may have finished the same conversion first
            raise _disk_error(error, folder) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Remove a damaged conversion. Its name is free at once; processes that have mapped it keep their files."""
    if not folder.exists():
        return
    try:
        with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder.parent, ignore_cleanup_errors=True) as aside:
            folder.rename(Path(aside) / folder.name)
    except FileNotFoundError:
        return  # another process took it away first
    except OSError as error:
        raise _disk_error(error, folder) from error


def _disk_error(error: OSError, folder: Path) -> PacelineError:
    reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
    remedy = "free some space or set" if error.errno == errno.ENOSPC else "set"
    return PacelineError(
        f"PACELINE_CACHE: converted weights could not be stored in {folder.parent}: {reason}; {remedy} PACELINE_CACHE "
        "to a folder on another disk"
    )
