"""What a LoRA adapter's files say: a folder as PEFT saves it, or a GGUF file as llama.cpp reads it.

Not for what becomes of a model (`adapter.py`).
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paceline.errors import CorruptWeights, ModelNotFound, UnsupportedModel
from paceline.models.fields import Fields, shown
from paceline.models.files.checkpoint import finite
from paceline.models.files.gguf_file import read_values
from paceline.models.files.gguf_parts import read_parts
from paceline.models.files.safetensors_header import StoredTensor, read_headers
from paceline.models.json_file import read_json

CONFIG = "adapter_config.json"
_AGAIN = "save the adapter again"
_WEIGHTS, _PICKLED = "adapter_model.safetensors", "adapter_model.bin"
_OWN = r"(?:base_model\.model\.)?"
_PART = re.compile(_OWN + r"(.+)\.lora_(?:(embedding)_)?(A|B|magnitude_vector)(?:\.default)?(?:\.weight)?")
_WHOLE = re.compile(_OWN + r"(.+?)(?:\.base_layer|\.modules_to_save(?:\.default)?)?\.(weight|bias)")
_REFUSED = {
    "layer_replication": "layers that are used several times", "lora_bias": "biases of its own",
    "alora_invocation_tokens": "an adapter that begins at a token", "trainable_token_indices": "single embeddings",
    "target_parameters": "experts in one tensor", "use_qalora": "updates of groups",
}  # fmt: skip
"""Settings that change what an adapter computes, and what they stand for."""
_GGUF_PART = re.compile(r"(.+\.weight)\.lora_(a|b)")
_GGUF_EMBEDDINGS = "token_embd.weight"
_CHANGES_BASE = ("pissa", "olora", "corda")
"""How names of initialisations begin that change the model's own weights too."""


@dataclass(slots=True)
class Update:
    """What an adapter does to one tensor of the files that transformers writes.

    Attributes:
        whole: the tensor in its place; None leaves the model's.
        down, up: [rank, in] and [out, rank] float32, of a table of embeddings [rank, width] and [tokens, rank]; None
            adds nothing.
        scale: factor of up @ down.
        magnitude: [out] float32, the length of every row of the sum (DoRA); None leaves them as they are.
    """

    whole: np.ndarray | None = None
    down: np.ndarray | None = None
    up: np.ndarray | None = None
    scale: float = 1.0
    magnitude: np.ndarray | None = None


@dataclass(slots=True)
class Adapter:
    """An adapter that was read.

    Attributes:
        path: the folder or file.
        files: of which it consists.
        updates: by name of the tensor in transformers' files, or in GGUF files.
        is_gguf: which of them.
        keeps_tie: whether an output head that shares the embeddings goes on sharing them once they are updated.
    """

    path: Path
    files: tuple[Path, ...]
    is_gguf: bool = False
    updates: dict[str, Update] = field(default_factory=dict)
    keeps_tie: bool = False


def is_adapter(folder: Path) -> bool:
    """Whether `folder` holds an adapter and no whole model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path) -> str:
    """The name of the model that the adapter in `folder` was trained on; empty where its file does not say."""
    return Fields(read_json(folder / CONFIG, _AGAIN)).text("base_model_name_or_path", "")


def read_adapter(path: Path) -> Adapter:
    """Read the adapter in a folder that PEFT saved, or in a GGUF file.

    Raises:
        ModelNotFound: the file, or of a folder ``adapter_config.json`` or the weights are missing.
        CorruptWeights: a file is damaged, or half of an update is missing.
        UnsupportedModel: it is no LoRA adapter, or one with parts that are not implemented.
    """
    found = _read_gguf(path) if path.is_file() else _read_folder(path)
    if not found.updates:
        raise CorruptWeights(f"{path}: holds no tensors of an adapter; {_AGAIN}")
    return found


def _read_gguf(path: Path) -> Adapter:
    (part, *_) = read_parts(path)
    fields, found = Fields(part.header.metadata), Adapter(path, (path,), is_gguf=True)
    kind = fields.text("general.type", "model"), fields.text("adapter.type", "lora")
    if kind != ("adapter", "lora"):
        remedy = "give a file of llama.cpp's convert_lora_to_gguf.py"
        raise UnsupportedModel(f"{path}: is a {' '.join(kind[:1])} and no LoRA adapter; {remedy}")
    if fields.get("adapter.alora.invocation_tokens", None):
        raise UnsupportedModel(f"{path}: adapters that begin at a token are not implemented")
    for name, entry in part.header.tensors.items():
        known = _GGUF_PART.fullmatch(name)
        if known is None or len(entry.shape) != 2:
            raise UnsupportedModel(f"{path}: {shown(name)} is no part of LoRA that is implemented")
        update, values = found.updates.setdefault(known[1], Update()), finite(read_values(part.data, entry), name, path)
        if known[1] == _GGUF_EMBEDDINGS:  # [tokens, rank] and [width, rank]
            update.up, update.down = (values, update.down) if known[2] == "a" else (update.up, values.T)
        elif known[2] == "a":
            update.down = values
        else:
            update.up = values
    alpha = fields.number("adapter.lora.alpha", 0.0, above=-1.0)
    for name, update in found.updates.items():
        rank = _check_whole(name, update, path)
        update.scale = alpha / rank if alpha else 1.0  # as llama.cpp does
    return found


def _read_folder(folder: Path) -> Adapter:
    if not (folder / CONFIG).is_file():
        remedy = "give a folder that PEFT's save_pretrained wrote"
        raise ModelNotFound(f"{folder}: has no {CONFIG}, so it is no adapter; {remedy}")
    fields, path = Fields(read_json(folder / CONFIG, _AGAIN)), folder / _WEIGHTS
    _check_settings(fields, folder)
    if not path.is_file():
        remedy = f"{_PICKLED} can run code when it is read: save it with safe_serialization=True"
        remedy = remedy if (folder / _PICKLED).is_file() else "copy it there"
        raise ModelNotFound(f"{folder}: has no {_WEIGHTS}; {remedy}")
    found = Adapter(folder, (folder / CONFIG, path), keeps_tie=fields.flag("ensure_weight_tying", False))
    for name, entry in read_headers([path], {}).items():
        _add(found.updates, name, _values(entry, name, path), path)
    for name, update in found.updates.items():
        rank = _check_whole(name, update, path)
        if rank and update.magnitude is None and fields.flag("use_dora", False):
            raise CorruptWeights(f"{path}: {shown(name)} has no lora_magnitude_vector; {_AGAIN}")
        if rank:
            update.scale = _scale(fields, name.removesuffix(".weight"), rank)
    return found


def _check_settings(fields: Fields, folder: Path) -> None:
    kind = fields.text("peft_type", "")
    if kind != "LORA":
        remedy = "merge it with PEFT's merge_and_unload and save the model"
        raise UnsupportedModel(f"{folder}: is a {shown(kind)} adapter, and only LORA is implemented; {remedy}")
    for name, what in _REFUSED.items():
        if fields.get(name, None):
            raise UnsupportedModel(f"{folder}: {name}: {what} are not implemented; merge the adapter with PEFT")
    start = fields.get("init_lora_weights", True)
    if isinstance(start, str) and start.startswith(_CHANGES_BASE):
        remedy = "save it with path_initial_model_for_weight_conversion, which makes a plain adapter of it"
        raise UnsupportedModel(f"{folder}: init_lora_weights: {shown(start)} changes the model too; {remedy}")


def _values(entry: StoredTensor, name: str, path: Path) -> np.ndarray:
    values = entry.floats()
    if values is None:
        remedy = "save the adapter in bfloat16, float16 or float32"
        raise UnsupportedModel(f"{path}: {shown(name)} is stored as {entry.storage}; {remedy}")
    return finite(values, name, path)


def _add(updates: dict[str, Update], name: str, values: np.ndarray, path: Path) -> None:
    """Put one tensor of an adapter's file in its place."""
    if part := _PART.fullmatch(name):
        update, embeds = updates.setdefault(f"{part[1]}.weight", Update()), part[2] is not None
        if part[3] == "magnitude_vector" and not embeds:
            update.magnitude = values.reshape(-1)
        elif values.ndim != 2 or part[3] == "magnitude_vector":
            raise UnsupportedModel(f"{path}: {name} has shape {values.shape}: only matrices can be updated")
        elif embeds:
            update.up, update.down = (values.T, update.down) if part[3] == "A" else (update.up, values.T)
        elif part[3] == "A":
            update.down = values
        else:
            update.up = values
    elif (whole := _WHOLE.fullmatch(name)) and "lora_" not in name:
        updates.setdefault(f"{whole[1]}.{whole[2]}", Update()).whole = values
    else:
        raise UnsupportedModel(f"{path}: {shown(name)} is no part of LoRA that is implemented; merge it with PEFT")


def _check_whole(name: str, update: Update, path: Path) -> int:
    """The rank of an update, 0 for a tensor that is replaced.

    Raises:
        CorruptWeights: a part of it is missing, or its parts do not fit each other.
    """
    if update.whole is not None and update.down is None and update.up is None and update.magnitude is None:
        return 0
    if update.down is None or update.up is None:
        lacking = "lora_B" if update.up is None else "lora_A"
        raise CorruptWeights(f"{path}: {shown(name)} has no {lacking}; {_AGAIN}")
    if update.up.shape[1] != len(update.down) or not len(update.down):
        ranks = f"{len(update.down)} and {update.up.shape[1]}"
        raise CorruptWeights(f"{path}: {shown(name)} has matrices of ranks {ranks}; {_AGAIN}")
    return len(update.down)


def _scale(fields: Fields, module: str, rank: int) -> float:
    """alpha / rank, or by ``use_rslora`` alpha / sqrt(rank); ``alpha_pattern`` has the alpha of some modules."""
    alpha = fields.number("lora_alpha", 8.0)
    patterns = fields.inner("alpha_pattern")
    for pattern, _ in patterns.items():
        if _matches(pattern, module):
            alpha = patterns.number(pattern)
            break
    return alpha / (rank**0.5 if fields.flag("use_rslora", False) else rank)


def _matches(pattern: str, module: str) -> bool:
    """Whether a key of ``alpha_pattern`` names a module, as PEFT reads it: an expression for how its name ends."""
    try:
        return re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module) is not None
    except re.error:
        raise UnsupportedModel(f"alpha_pattern: {shown(pattern)} is no expression; {_AGAIN}") from None
