"""Where Paceline keeps what it downloads and converts. Everything in it can be deleted at any time."""

import os
import sys
from pathlib import Path

CACHE_VARIABLE = "PACELINE_CACHE"
"""Environment variable that moves the cache."""

PARTIAL = ".part"
"""Suffix of the name of an incomplete download."""


def cache_dir() -> Path:
    """The cache folder: $PACELINE_CACHE, else ``paceline`` in the platform's cache folder. It need not exist yet."""
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
