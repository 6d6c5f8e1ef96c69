"""Detects damaged cache files by their checksums, which are computed again only when a file may have changed.

Sizes and times are compared at every start; contents are hashed when a file was written to since the last check, or
after a reboot. This detects files that are missing, truncated or modified, and data lost by a disk or a power failure.
It does not detect memory errors while the machine runs. Not for repair: callers create damaged files again.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paceline.disk import in_one_move

MANIFEST = "manifest.json"
"""Checksums of the other files in a sealed folder."""
_CHECKED = "checked.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CHUNK = 1 << 20


def seal(folder: Path) -> None:
    """Store the checksums of all files in `folder` in its manifest, for `is_sealed`."""
    paths = sorted(path for path in folder.iterdir() if path.name not in (MANIFEST, _CHECKED))
    sums = {path.name: digest for path, digest in zip(paths, _digests(paths), strict=True)}
    (folder / MANIFEST).write_text(json.dumps(sums))
    remember([*paths, folder / MANIFEST], folder / _CHECKED)


def is_sealed(folder: Path) -> bool:
    """Whether every file that was in `folder` when it was sealed is unchanged."""
    try:
        sums = json.loads((folder / MANIFEST).read_text())
        paths = [folder / name for name in sums]
        everything = [*paths, folder / MANIFEST]
        if not paths:
            return False
        if is_remembered(everything, folder / _CHECKED):
            return True
        if _digests(paths) != list(sums.values()):
            return False
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    remember(everything, folder / _CHECKED)
    return True


def remember(paths: Sequence[Path], stamp: Path) -> None:
    """Record in the file `stamp` that `paths` were checked in their current state.

    Where `stamp` cannot be written nothing happens: the files are checked again next time.
    """
    try:
        with in_one_move(stamp) as file:
            file.write_text(json.dumps([_boot(), _states(paths)]))
    except OSError:
        return


def is_remembered(paths: Sequence[Path], stamp: Path) -> bool:
    """Whether `paths` were checked since the last boot and have not been written to since."""
    try:
        return json.loads(stamp.read_text()) == [_boot(), _states(paths)]
    except (OSError, ValueError):
        return False


def file_digest(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def digest_of(paths: Iterable[Path]) -> str:
    """SHA-256 of the contents of small files, one after another, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _digests(paths: Sequence[Path]) -> list[str]:
    with ThreadPoolExecutor() as pool:  # hashing releases the GIL
        return list(pool.map(file_digest, paths))


def _states(paths: Sequence[Path]) -> list[list[int]]:
    """Size, times and inode of each file; any write changes them."""
    stats = [path.stat() for path in paths]
    return [[stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino] for stat in stats]


def _boot() -> str:
    """An identifier of the current boot; where the system has none, the time of boot in minutes."""
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text().strip()
    return f"{(time.time() - time.monotonic()) / 60:.0f}"
