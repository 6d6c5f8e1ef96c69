"""Where Paceline keeps what it downloads and converts. Everything in it can be deleted at any time."""

import os
import sys
from pathlib import Path

CACHE_VARIABLE = "PACELINE_CACHE"
"""Environment variable that moves the cache."""

PARTIAL = ".part"
"""End of the name of a download that is not complete yet."""


def cache_dir() -> Path:
    """The cache folder: $PACELINE_CACHE, else the platform's place for caches. It need not exist yet."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else _platform_caches() / "paceline"


def _platform_caches() -> Path:
    chosen = os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path.home() / ".cache"
