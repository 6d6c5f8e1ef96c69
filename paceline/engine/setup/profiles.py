"""Where cost profiles are stored, and how the profile of a model is found.

A profile is valid for given weights, dtype, executor and its code, threads and machine; the file's name is a hash of
all of these. Not for measuring (`evaluation/tune.py`).
"""

import hashlib
import inspect
import os
import platform
import re
from functools import cache
from pathlib import Path

from paceline.config import EngineConfig
from paceline.errors import InvalidParameter
from paceline.models.base import CausalLM, HasDescription, HasThreads
from paceline.models.cache_dir import cache_dir
from paceline.models.dtypes import AUTO
from paceline.models.intact import digest_of
from paceline.models.loaded import LoadedModel
from paceline.scheduling.profile import Profile


def profile_path(loaded: LoadedModel, dtype: str) -> Path:
    """The path of the profile of `loaded` in the cache folder; the file need not exist."""
    dtype = dtype_of(loaded, dtype)
    model, fingerprint = loaded.model, loaded.source.checkpoint.fingerprint
    folder = Path(inspect.getfile(type(model))).parent
    key = f"{machine()}|{executor_name(model)}|{code_digest(folder)}|{num_threads(model)}|{dtype}|{fingerprint}"
    return cache_dir() / "profiles" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


@cache
def code_digest(folder: Path) -> str:
    """A digest of the Python files below `folder`: passes of an executor whose code has changed may cost otherwise."""
    return digest_of(sorted(folder.rglob("*.py")))


def cached_profile(loaded: LoadedModel, config: EngineConfig) -> Profile | None:
    """The profile that `paceline tune` stored in the cache; None without one. A damaged file is removed."""
    path = profile_path(loaded, config.dtype)
    if not path.exists():
        return None
    try:
        return Profile.read(path)
    except InvalidParameter:
        path.unlink(missing_ok=True)
        return None


def find_profile(loaded: LoadedModel, config: EngineConfig) -> Profile | None:
    """The profile that `config.profile` names: ``auto`` is the cached one if any, ``none`` is None, else a file's path.

    Raises:
        InvalidParameter: the file is not a readable profile, or belongs to another model or dtype.
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
    """The dtype that the model runs in; `asked` may be ``auto``."""
    return loaded.dtype or asked if asked == AUTO else asked


def executor_name(model: CausalLM) -> str:
    """The executor's name, such as ``NumbaModel``; for a parallel run with its parallel degrees."""
    return model.description if isinstance(model, HasDescription) else type(model).__name__


def num_threads(model: CausalLM) -> int | None:
    """Threads of a pass; None where the executor does not say."""
    return model.num_threads if isinstance(model, HasThreads) else None


def machine() -> str:
    """Processor model, and the number of processors available to this process."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cpus} processors"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", path.read_text()) if path.exists() else None
    return found.group(1) if found else platform.processor() or platform.machine()
