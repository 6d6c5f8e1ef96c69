"""Find the memory of a model: named by the user, in the cache, next to the weights, or shipped with Paceline."""

from collections.abc import Iterator
from pathlib import Path

from paceline.drafters.lookup.memory import Memory, read_memory
from paceline.errors import InvalidParameter
from paceline.models.cache_dir import cache_dir
from paceline.models.fetch.download import BUILTIN_MODELS
from paceline.models.resolve import ModelSource

FILE_NAME = "memory.safetensors"
SHIPPED = Path(__file__).parents[2] / "heads"
"""Folder of the shipped heads and memories, with a subfolder for each built-in model."""


def find_memory(wanted: str, source: ModelSource) -> Memory | None:
    """The memory for the model `source`; None where there is none.

    Args:
        wanted: a path, the name of a built-in model whose memory is in the cache or shipped, ``auto`` for the model's
            own memory if there is one, or ``none``.

    Raises:
        InvalidParameter: there is no such memory, or it has another vocabulary.
        CorruptWeights: the file is damaged.
    """
    if wanted == "none":
        return None
    if wanted == "auto":
        return next((read_fitting(path, source) for path in _places(source) if path.is_file()), None)
    named = [path for path in _named(wanted) if path.is_file()]
    return read_fitting(named[0] if named else Path(wanted).expanduser(), source)


def read_fitting(path: Path, source: ModelSource) -> Memory:
    """The memory at `path`, which must have the model's vocabulary. Raises as `find_memory`."""
    memory = read_memory(path)
    if memory.info.vocabulary != source.tokenizer.vocabulary_fingerprint():
        problem = (
            f"{path} is of another vocabulary than {source.name} has (written by {memory.info.model or 'another'})"
        )
        raise InvalidParameter("memory", problem, "write one with paceline train memory, or use 'none'")
    return memory


def cached_path(source: ModelSource) -> Path:
    """The path that `paceline train memory` writes to, and that ``auto`` tries first."""
    known = source.name in BUILTIN_MODELS
    return _in_cache(source.name if known else source.checkpoint.fingerprint)


def hidden_by(path: Path, source: ModelSource) -> Path | None:
    """The memory that ``auto`` would take if there were none at `path`; None where there is none, or no change."""
    places = list(_places(source))
    later = places[places.index(path) + 1 :] if path in places else []
    return next((each for each in later if each.is_file()), None)


def _in_cache(key: str) -> Path:
    return cache_dir() / "heads" / key / FILE_NAME


def _named(name: str) -> Iterator[Path]:
    if name in BUILTIN_MODELS:
        yield _in_cache(name)
        yield SHIPPED / name / FILE_NAME


def _places(source: ModelSource) -> Iterator[Path]:
    """Candidate paths for ``auto``: the user's own before the shipped one."""
    yield cached_path(source)
    weights = Path(source.name).expanduser()
    yield weights / FILE_NAME if weights.is_dir() else weights.with_name(f"{weights.name}.{FILE_NAME}")
    if source.name in BUILTIN_MODELS:
        yield SHIPPED / source.name / FILE_NAME
