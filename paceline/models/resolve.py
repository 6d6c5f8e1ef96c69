"""From a model name to its weights and tokenizer: local folder, local GGUF file, built-in name, hub id, in that order.

A hub id is taken from what was pulled (`hub_copies.py`), else it is pulled now (`hub.py`); ``owner/model`` without
``hf:`` comes through the hub's own client where that is installed, whose cache other programs share.

Not for reading formats (`gguf_file.py`, `safetensors_folder.py`) nor for choosing an executor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from paceline.errors import DownloadFailed, ModelNotFound
from paceline.models.checkpoint import Checkpoint
from paceline.models.config import ModelConfig
from paceline.models.download import BUILTIN_MODELS, fetch_builtin
from paceline.models.gguf_file import GGUFCheckpoint
from paceline.models.hub_copies import FOLDER_FILES, HubName, Pulled, hub_name, pulled
from paceline.models.safetensors_folder import SafetensorsCheckpoint, folder_config
from paceline.models.tokenizer import Tokenizer
from paceline.models.tokenizer_folder import tokenizer_from_folder
from paceline.types import Progress


@dataclass(frozen=True, eq=False, slots=True)
class ModelSource:
    """A model that was found: the name it was asked for by, its weights, its tokenizer."""

    name: str
    checkpoint: Checkpoint
    tokenizer: Tokenizer

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer: the model's own and the tokenizer's."""
        return tuple(dict.fromkeys((*self.checkpoint.config.eos_token_ids, *self.tokenizer.eos_token_ids)))


def resolve_model(name: str, *, progress: Progress | None = None) -> ModelSource:
    """Find the model called `name`, downloading it where it has to be.

    Args:
        name: a folder with safetensors, a GGUF file, a built-in name (`BUILTIN_MODELS`), or a hub id ``owner/model``,
            ``hf:owner/model`` or ``hf:owner/model:Q4_K_M`` (`hub_copies.py`).
        progress: called with (bytes done, bytes in all) while a model is fetched.

    Raises:
        ModelNotFound: the name is none of these.
        DownloadFailed: the name is known but its weights cannot be fetched.
        UnsupportedModel, CorruptWeights: the weights are there but cannot be used.
    """
    path = Path(name).expanduser()
    if name and path.is_dir():
        return _from_folder(name, path)
    if path.is_file():
        return _from_gguf(name, path)
    if name in BUILTIN_MODELS:
        return _from_gguf(name, fetch_builtin(BUILTIN_MODELS[name], progress))
    hub = hub_name(name)
    if hub is None:
        tried = "no local folder, no local file, no built-in name, and not of a hub id's form owner/model"
        raise _not_found(name, tried)
    copy = pulled(hub)
    if copy is None and name == hub.id and find_spec("huggingface_hub"):
        return _from_folder(name, hub_folder(name, FOLDER_FILES, "no local folder, no local file, no built-in name"))
    found = (copy or _pull(hub, progress)).path
    return _from_folder(name, found) if found.is_dir() else _from_gguf(name, found)


def resolve_config(name: str, *, progress: Progress | None = None) -> ModelConfig:
    """The config of the model called `name`; no weights are read, nor any fetched from the hub.

    Args:
        name: as in `resolve_model`; of a folder, ``config.json`` is enough. Of a hub id ``owner/model`` that was not
            pulled, that file alone is fetched, where the hub's client is installed.
        progress: called with (bytes done, bytes in all) while a built-in model is fetched.

    Raises:
        ModelNotFound: the name is none of these, or was not pulled.
        DownloadFailed, UnsupportedModel, CorruptWeights: see `resolve_model`.
    """
    path = Path(name).expanduser()
    if name in BUILTIN_MODELS and not path.exists():
        path = fetch_builtin(BUILTIN_MODELS[name], progress)
    elif not name or not path.exists():
        path = _hub_config(name)
    return folder_config(path) if path.is_dir() else GGUFCheckpoint(path).config


def _hub_config(name: str) -> Path:
    """A pulled copy of a hub id, or a folder with its config."""
    tried = "no local folder, no local file, no built-in name"
    hub = hub_name(name)
    if hub is None:
        raise _not_found(name, f"{tried}, and not of a hub id's form owner/model")
    copy = pulled(hub)
    if copy is not None:
        return copy.path
    if name == hub.id and find_spec("huggingface_hub"):
        return hub_folder(name, ("config.json",), tried)
    raise _not_found(name, f"{tried}, and not pulled yet (paceline pull {hub})")


def _from_gguf(name: str, path: Path) -> ModelSource:
    checkpoint = GGUFCheckpoint(path)
    return ModelSource(name, checkpoint, Tokenizer.from_gguf(checkpoint.metadata))


def _from_folder(name: str, folder: Path) -> ModelSource:
    return ModelSource(name, SafetensorsCheckpoint(folder), tokenizer_from_folder(folder))


def _pull(name: HubName, progress: Progress | None) -> Pulled:
    from paceline.models.hub import pull  # costs a twentieth of a second that most starts do not need

    return pull(name, progress)


def hub_folder(name: str, patterns: Sequence[str], tried: str) -> Path:
    """A folder with the files of the hub's repository `name` that match `patterns`.

    Args:
        tried: what was looked for before, told in the error.

    Raises:
        ModelNotFound: the hub has none of that name, or its client is not installed.
        DownloadFailed: it cannot be fetched.
    """
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise _not_found(name, f"{tried}; hub ids need an extra: pip install 'paceline[hub]'") from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except errors.GatedRepoError:
        raise DownloadFailed(
            f"{name}: its owner asks you to accept terms first; do so on its page on the hub, then run hf auth login"
        ) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise _not_found(name, f"{tried}, and the hub has no model of that name ({type(error).__name__})") from None
    except Exception as error:  # no network, no disk, a server's bad day: the hub's client has many ways to say it
        raise DownloadFailed(
            f"{name}: the hub could not deliver it ({type(error).__name__}: {str(error)[:200]}); check the network, or "
            f"use a local path or a built-in model: {', '.join(BUILTIN_MODELS)}"
        ) from error


def _not_found(name: str, tried: str) -> ModelNotFound:
    return ModelNotFound(
        f"model {name!r}: {tried}; built-in models are {', '.join(BUILTIN_MODELS)}, a path must exist, "
        "a hub id looks like owner/model or hf:owner/model:Q4_K_M"
    )
