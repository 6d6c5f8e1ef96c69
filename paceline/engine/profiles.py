"""Where cost profiles are kept, and which one belongs to a model.

A profile holds for these weights, run this way, on this machine; all of that is in the file's name. Not for measuring
(`evaluation/tune.py`).
"""

import hashlib
import os
import platform
import re
from pathlib import Path

from paceline.config import EngineConfig
from paceline.errors import InvalidParameter
from paceline.models.base import CausalLM
from paceline.models.cache_dir import cache_dir
from paceline.models.dtypes import AUTO
from paceline.models.loaded import LoadedModel
from paceline.scheduling.profile import Profile


def profile_path(loaded: LoadedModel, dtype: str) -> Path:
    """The file in the cache folder that holds the profile of `loaded`, whether there is one yet or not."""
    dtype = dtype_of(loaded, dtype)
    model, fingerprint = loaded.model, loaded.source.checkpoint.fingerprint
    key = f"{machine()}|{executor_name(model)}|{num_threads(model)}|{dtype}|{fingerprint}"
    return cache_dir() / "profiles" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def cached_profile(loaded: LoadedModel, config: EngineConfig) -> Profile | None:
    """The profile that `paceline tune` left in the cache, None without one; a damaged one is removed."""
    path = profile_path(loaded, config.dtype)
    if not path.exists():
        return None
    try:
        return Profile.read(path)
    except InvalidParameter:
        path.unlink(missing_ok=True)
        return None


def find_profile(loaded: LoadedModel, config: EngineConfig) -> Profile | None:
    """The profile that `config.profile` asks for: ``auto`` the cached one where there is one, ``none`` none.

    Raises:
        InvalidParameter: the named file is not a profile that can be read, or of another model.
    """
    if config.profile == "none":
        return None
    if config.profile == "auto":
        return cached_profile(loaded, config)
    profile = Profile.read(Path(config.profile).expanduser())
    if profile.fingerprint != loaded.source.checkpoint.fingerprint or profile.dtype != dtype_of(loaded, config.dtype):
        problem = f"{config.profile} is of {profile.model} in {profile.dtype}, not of {loaded.source.name}"
        raise InvalidParameter("profile", problem, "measure this model with `paceline tune --output FILE`")
    return profile


def dtype_of(loaded: LoadedModel, asked: str) -> str:
    """The dtype that a model runs in, where `asked` may be ``auto``."""
    return loaded.dtype or asked if asked == AUTO else asked


def executor_name(model: CausalLM) -> str:
    """``NumbaModel`` and the like; a parallel run says its degrees too."""
    return getattr(model, "description", type(model).__name__)


def num_threads(model: CausalLM) -> int | None:
    """Threads of a pass, where the executor says."""
    return getattr(model, "num_threads", None)


def machine() -> str:
    """Processor and number of processors of this process."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cpus} processors"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", path.read_text()) if path.exists() else None
    return found.group(1) if found else platform.processor() or platform.machine()
