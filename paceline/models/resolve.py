"""Finds the weights and tokenizer of a model name: local folder, local GGUF file, built-in name or hub id, in order.

A folder with a LoRA adapter is the model that it was trained on with the adapter merged into it; ``BASE+ADAPTER`` names
that model itself.

For a hub id a pulled copy is used (`fetch/hub_copies.py`); without one the model is pulled now (`fetch/hub.py`), except
that ``owner/model`` without ``hf:`` is fetched by ``huggingface_hub`` where that is installed, into its shared cache.

Not for reading formats (`files/`) nor for choosing an executor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from paceline.errors import DownloadFailed, ModelNotFound, UnsupportedModel, first_line, nearest
from paceline.extras import install
from paceline.models.architecture.config import ModelConfig
from paceline.models.fetch.download import BUILTIN_MODELS, fetch_builtin
from paceline.models.fetch.hub_copies import FOLDER_FILES, HubName, Pulled, hub_name, pulled
from paceline.models.files.adapter import AdaptedCheckpoint
from paceline.models.files.adapter_files import base_of, is_adapter
from paceline.models.files.checkpoint import Checkpoint
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint, folder_config
from paceline.models.text.tokenizer import Tokenizer
from paceline.models.text.tokenizer_folder import tokenizer_from_folder
from paceline.types import Progress

_WEIGHT_FILES = (".gguf", ".safetensors", ".bin", ".pt", ".pth")
"""How names of files with weights end."""


@dataclass(frozen=True, eq=False, slots=True)
class ModelSource:
    """A model that was found: the name it was asked for by, its weights, its tokenizer.

    Attributes:
        base: the model that an adapter was merged into; None for a model without one.
    """

    name: str
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    base: "ModelSource | None" = None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer: the model's own and the tokenizer's."""
        return tuple(dict.fromkeys((*self.checkpoint.config.eos_token_ids, *self.tokenizer.eos_token_ids)))


def resolve_model(name: str, *, progress: Progress | None = None) -> ModelSource:
    """Find the model called `name`, and download it if necessary.

    Args:
        name: a folder with safetensors, a GGUF file, a built-in name (`BUILTIN_MODELS`), or a hub id ``owner/model``,
            ``hf:owner/model`` or ``hf:owner/model:Q4_K_M`` (`fetch/hub_copies.py`). A folder or hub id of a LoRA
            adapter is its model with the adapter; ``BASE+ADAPTER`` is any of these with the
            adapter in a folder or GGUF file.
        progress: called with (bytes done, bytes in total) while a model is downloaded.

    Raises:
        ModelNotFound: the name is none of these.
        DownloadFailed: the name is known but its weights cannot be fetched.
        UnsupportedModel, CorruptWeights: the weights exist but cannot be used.
    """
    path = Path(name).expanduser()
    if name and path.is_dir():
        return _from_folder(name, path, progress)
    if path.is_file():
        return _from_gguf(name, path)
    if name in BUILTIN_MODELS:
        return _from_gguf(name, fetch_builtin(BUILTIN_MODELS[name], progress))
    base, adapter = _with_adapter(name)
    if adapter is not None:
        return _adapted(name, resolve_model(base, progress=progress), adapter)
    if _is_path(name):
        raise _no_such_file(name)
    hub = hub_name(name)
    if hub is None:
        tried = "no local folder, no local file, no built-in name, and not of a hub id's form owner/model"
        raise _not_found(name, tried)
    copy = pulled(hub)
    if copy is None and name == hub.id and find_spec("huggingface_hub"):
        folder = hub_folder(name, FOLDER_FILES, "no local folder, no local file, no built-in name")
        return _from_folder(name, folder, progress)
    found = (copy or _pull(hub, progress)).path
    return _from_folder(name, found, progress) if found.is_dir() else _from_gguf(name, found)


def resolve_config(name: str, *, progress: Progress | None = None) -> ModelConfig:
    """The config of the model called `name`; weights are neither read nor fetched from the hub.

    Args:
        name: as in `resolve_model`; a folder needs only ``config.json``, and the config of a model with an adapter is
            that of the model. For a hub id ``owner/model`` that was not
            pulled, only that file is fetched, if ``huggingface_hub`` is installed.
        progress: called with (bytes done, bytes in total) while a built-in model is downloaded.

    Raises:
        ModelNotFound: the name is none of these, or was not pulled.
        DownloadFailed, UnsupportedModel, CorruptWeights: see `resolve_model`.
    """
    path = Path(name).expanduser()
    if name in BUILTIN_MODELS and not path.exists():
        path = fetch_builtin(BUILTIN_MODELS[name], progress)
    elif not name or not path.exists():
        base, adapter = _with_adapter(name)
        if adapter is not None:
            return resolve_config(base, progress=progress)
        path = _hub_config(name)
    if path.is_dir() and is_adapter(path):
        return resolve_config(_base_name(path), progress=progress)
    return folder_config(path) if path.is_dir() else GGUFCheckpoint(path).config


def _hub_config(name: str) -> Path:
    """The pulled copy of a hub id, or a folder with its config. Raises ModelNotFound where neither can be had."""
    if _is_path(name):
        raise _no_such_file(name)
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


def _from_folder(name: str, folder: Path, progress: Progress | None) -> ModelSource:
    if is_adapter(folder):
        return _adapted(name, _base_model(folder, progress), folder)
    return ModelSource(name, SafetensorsCheckpoint(folder), tokenizer_from_folder(folder))


def _with_adapter(name: str) -> tuple[str, Path | None]:
    """The two halves of ``BASE+ADAPTER``; None in place of the second where `name` is not of that form.

    Raises:
        ModelNotFound: what follows the plus is a path that leads nowhere.
    """
    halves = [(name[:i], name[i + 1 :]) for i, letter in enumerate(name) if letter == "+" and 0 < i < len(name) - 1]
    for base, adapter in reversed(halves):
        if Path(adapter).expanduser().exists():
            return base, Path(adapter).expanduser()
    known = [half for half in halves if half[0] in BUILTIN_MODELS or Path(half[0]).expanduser().exists()]
    if known or (halves and (_is_path(halves[-1][1]) or _is_path(name))):
        path = Path((known or halves)[-1][1]).expanduser()
        raise ModelNotFound(f"model {name!r}: no adapter is at {path}; check the path after the plus")
    return name, None


def _base_name(folder: Path) -> str:
    """The model of the adapter in `folder`. Raises ModelNotFound where its file names none."""
    base = base_of(folder)
    if not base or is_adapter(Path(base).expanduser()):
        problem = f"was trained on {base}, an adapter itself" if base else "does not say which model it was trained on"
        raise ModelNotFound(f"{folder}: {problem}; write BASE+{folder}")
    return base


def _base_model(folder: Path, progress: Progress | None) -> ModelSource:
    base = _base_name(folder)
    try:
        return resolve_model(base, progress=progress)
    except (ModelNotFound, DownloadFailed, UnsupportedModel) as error:
        problem = f"was trained on {base!r}, which cannot be used ({first_line(error)})"
        raise type(error)(f"{folder}: {problem}; for a copy of it elsewhere write BASE+{folder}") from error


def _adapted(name: str, base: ModelSource, adapter: Path) -> ModelSource:
    """`base` with an adapter, and with the adapter's tokenizer where it was saved with one."""
    own = (adapter / "tokenizer.json").is_file()
    tokenizer = tokenizer_from_folder(adapter) if own else base.tokenizer
    checkpoint = AdaptedCheckpoint(base.checkpoint, adapter)
    if own and tokenizer.vocab_size > max(checkpoint.config.vocab_size, base.tokenizer.vocab_size):
        problem = f"its tokenizer has {tokenizer.vocab_size} tokens, the model {checkpoint.config.vocab_size}"
        raise UnsupportedModel(f"{adapter}: {problem}; save embeddings and output head with it (modules_to_save)")
    return ModelSource(name, checkpoint, tokenizer, base)


def _pull(name: HubName, progress: Progress | None) -> Pulled:
    from paceline.models.fetch.hub import pull  # its import takes a twentieth of a second, and few starts need it

    return pull(name, progress)


def hub_folder(name: str, patterns: Sequence[str], tried: str) -> Path:
    """A folder with the files of the hub's repository `name` that match `patterns`.

    Args:
        tried: what was tried before, for the error message.

    Raises:
        ModelNotFound: the hub has no model of that name, or ``huggingface_hub`` is not installed.
        DownloadFailed: it cannot be fetched.
    """
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise _not_found(name, f"{tried}; hub ids need an extra: {install('hub')}") from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except errors.GatedRepoError:
        raise DownloadFailed(
            f"{name}: its owner asks you to accept terms first; do so on its page on the hub, then run hf auth login"
        ) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise _not_found(name, f"{tried}, and the hub has no model of that name ({type(error).__name__})") from None
    except Exception as error:  # network, disk or server: the hub's client raises many types
        if Path(name).parent.is_dir():  # a folder's name may be an owner's too, so the hub was asked first
            problem = f"there is no such file or folder below {Path.cwd()}"
            raise ModelNotFound(
                f"{name}: {problem}, nor could the hub deliver it ({type(error).__name__}); check the path"
            ) from error
        raise DownloadFailed(
            f"{name}: the hub could not deliver it ({type(error).__name__}: {first_line(error)}); check the network, "
            f"or use a local path or a built-in model: {', '.join(BUILTIN_MODELS)}"
        ) from error


def _is_path(name: str) -> bool:
    """Whether `name` can only mean a file or folder, and no model of the hub."""
    return name.endswith(_WEIGHT_FILES) or name.startswith(("./", "../", "/", "~"))


def _no_such_file(name: str) -> ModelNotFound:
    where = "" if name.startswith(("/", "~")) else f" below {Path.cwd()}"
    return ModelNotFound(
        f"model {name!r}: there is no such file or folder{where}; check the path, "
        f"write hf:owner/model for a model of the hub, or take a built-in one: {', '.join(BUILTIN_MODELS)}"
    )


def _not_found(name: str, tried: str) -> ModelNotFound:
    return ModelNotFound(
        f"model {name!r}: {tried}; {nearest(name, BUILTIN_MODELS)}built-in models are {', '.join(BUILTIN_MODELS)}, "
        "a path must exist, a hub id looks like owner/model or hf:owner/model:Q4_K_M"
    )
