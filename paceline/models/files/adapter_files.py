"""What a LoRA adapter's files say: a folder as PEFT saves it, or a GGUF file as llama.cpp reads it.

Tensors are read when they are asked for; what does not fit is refused before. Not for what becomes of a model
(`adapter.py`).
"""

import mmap
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paceline.errors import CorruptWeights, ModelNotFound, UnsupportedModel
from paceline.models.fields import Fields, shown
from paceline.models.files.checkpoint import FLOATS, finite
from paceline.models.files.gguf_file import read_values
from paceline.models.files.gguf_header import TensorEntry
from paceline.models.files.gguf_parts import read_parts
from paceline.models.files.safetensors_header import StoredTensor, read_headers
from paceline.models.json_file import read_json

CONFIG = "adapter_config.json"
_AGAIN = "save the adapter again"
_MERGE = "merge it with PEFT's merge_and_unload and save the model"
_WEIGHTS, _PICKLED = "adapter_model.safetensors", "adapter_model.bin"
_OWN = r"(?:base_model\.model\.)?(?:_orig_mod\.)?"
_PART = re.compile(_OWN + r"(.+)\.lora_(?:(embedding)_)?(A|B|magnitude_vector)(?:\.\w+)??(?:\.weight)?")
_WHOLE = re.compile(_OWN + r"(.+?)(\.base_layer|\.modules_to_save(?:\.\w+)?|\.original_module)?\.(weight|bias)")
_GGUF_PART = re.compile(r"(.+\.weight)\.lora_(a|b)")
_GGUF_EMBEDDINGS = "token_embd.weight"
_READ = frozenset({
    "alpha_pattern", "base_model_name_or_path", "ensure_weight_tying", "init_lora_weights", "lora_alpha", "peft_type",
    "r", "rank_pattern", "use_dora", "use_rslora",
})  # fmt: skip
"""Settings that say what an adapter computes, and are read here."""
_WITHOUT_EFFECT = frozenset({
    "auto_mapping", "bias", "corda_config", "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode",
    "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_config",
    "megatron_core", "modules_to_save", "peft_version", "qalora_group_size", "revision",
    "runtime_config", "target_modules", "task_type", "velora_config",
})  # fmt: skip
"""Settings of training, and those that the tensors themselves tell."""
_STARTS = ("gaussian", "eva", "orthogonal", "mica")
"""Initialisations of an adapter that leave the model's own weights as they are; PiSSA, OLoRA and others do not."""
_REPEATS_TWICE = re.compile(r"[+*}]\)[+*{]")


class Part(NamedTuple):
    """A tensor of an adapter: its shape, and what reads it as float32."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]

    @property
    def turned(self) -> "Part":
        """The transposed matrix."""
        return Part(self.shape[::-1], lambda: self.read().T)


@dataclass(slots=True)
class Update:
    """What an adapter does to one tensor of a model's files.

    Attributes:
        whole: the tensor in its place; None leaves the model's.
        down, up: [rank, in] and [out, rank], of a table of embeddings [rank, width] and [tokens, rank]; None adds
            nothing.
        scale: factor of up @ down.
        magnitude: [out], the length of every row of the sum (DoRA), or of a table [width], of every column; None leaves
            them as they are.
        embeds: whether it is a table of embeddings.
    """

    whole: Part | None = None
    down: Part | None = None
    up: Part | None = None
    scale: float = 1.0
    magnitude: Part | None = None
    embeds: bool = False


@dataclass(slots=True)
class Adapter:
    """An adapter whose tensors can be read.

    Attributes:
        path: the folder or file.
        files: of which it consists.
        architecture: GGUF's name of the model it is for; empty for an adapter of PEFT's.
        updates: by name of the tensor in transformers' files, or in GGUF files.
        keeps_tie: whether an output head that shares the embeddings goes on sharing them once they are updated.
    """

    path: Path
    files: tuple[Path, ...]
    architecture: str = ""
    updates: dict[str, Update] = field(default_factory=dict)
    keeps_tie: bool = False

    @property
    def is_gguf(self) -> bool:
        """Whether its tensors have GGUF's names and order."""
        return bool(self.architecture)


def is_adapter(folder: Path) -> bool:
    """Whether `folder` holds an adapter and no whole model."""
    return (folder / CONFIG).is_file() and not any(folder.glob("model*.safetensors*"))


def base_of(folder: Path) -> str:
    """The name of the model that the adapter in `folder` was trained on; empty where its file does not say."""
    return _config(folder).text("base_model_name_or_path", "")


def read_adapter(path: Path) -> Adapter:
    """What the adapter in a folder that PEFT saved, or in a GGUF file, changes.

    Raises:
        ModelNotFound: the file, or of a folder ``adapter_config.json`` or the weights are missing.
        CorruptWeights: a file is damaged, or half of an update is missing.
        UnsupportedModel: it is no LoRA adapter, or one with parts that are not implemented.
    """
    folder = path.parent if path.name == _WEIGHTS else path
    found = _read_gguf(folder) if folder.is_file() else _read_folder(folder)
    if not found.updates:
        raise CorruptWeights(f"{path}: holds no tensors of an adapter; {_AGAIN}")
    return found


def _read_gguf(path: Path) -> Adapter:
    (part, *more) = read_parts(path)
    fields = Fields(part.header.metadata)
    kind = fields.text("general.type", "model"), fields.text("adapter.type", "lora")
    if kind != ("adapter", "lora") or more:
        remedy = "give a file of llama.cpp's convert_lora_to_gguf.py"
        raise UnsupportedModel(f"{path}: is a {kind[0]}{' in parts' * bool(more)} and no LoRA adapter; {remedy}")
    if fields.get("adapter.alora.invocation_tokens", None):
        raise UnsupportedModel(f"{path}: adapters that begin at a token are not implemented; take another")
    found = Adapter(path, (path,), fields.text("general.architecture", "") or "unknown")
    for name, entry in part.header.tensors.items():
        known = _GGUF_PART.fullmatch(name)
        if known is None or len(entry.shape) != 2:
            raise UnsupportedModel(f"{path}: {shown(name)} is no part of LoRA that is implemented; take another")
        update = found.updates.setdefault(known[1], Update())
        values = Part(entry.shape, partial(_read_entry, part.data, entry, path))
        if known[1] == _GGUF_EMBEDDINGS:  # [tokens, rank] and [width, rank]
            _put(update, *(("up", values) if known[2] == "a" else ("down", values.turned)), name, path)
        else:
            _put(update, "down" if known[2] == "a" else "up", values, name, path)
    alpha = fields.number("adapter.lora.alpha", 0.0, above=-1.0)
    for name, update in found.updates.items():
        rank = _rank(name, update, path)
        update.scale = alpha / rank if alpha else 1.0  # as llama.cpp does
    return found


def _read_entry(data: mmap.mmap, entry: TensorEntry, path: Path) -> np.ndarray:
    return finite(read_values(data, entry), entry.name, path)


def _read_folder(folder: Path) -> Adapter:
    fields, path = _config(folder), folder / _WEIGHTS
    _check_settings(fields, folder)
    if not path.is_file():
        remedy = f"{_PICKLED} can run code when it is read: save it with safe_serialization=True"
        remedy = remedy if (folder / _PICKLED).is_file() else "copy it there"
        raise ModelNotFound(f"{folder}: has no file {_WEIGHTS}; {remedy}")
    found = Adapter(folder, (folder / CONFIG, path))
    for name, entry in read_headers([path], {}).items():
        _add(found.updates, name, entry, path)
    found.keeps_tie, needs_lengths = fields.flag("ensure_weight_tying", False), fields.flag("use_dora", False)
    for name, update in found.updates.items():
        rank = _rank(name, update, path)
        if rank and update.magnitude is None and needs_lengths:
            raise CorruptWeights(f"{path}: {shown(name)} has no lora_magnitude_vector; {_AGAIN}")
        if rank:
            update.scale = _scale(fields, name.removesuffix(".weight"), rank, path)
    return found


def _config(folder: Path) -> Fields:
    """The settings of the adapter in `folder`."""
    if not (folder / CONFIG).is_file():
        remedy = "give a folder that PEFT's save_pretrained wrote, or a GGUF file"
        raise ModelNotFound(f"{folder}: has no {CONFIG}, so it is no adapter; {remedy}")
    return Fields(read_json(folder / CONFIG, _AGAIN), where=folder / CONFIG, remedy=_AGAIN)


def _check_settings(fields: Fields, folder: Path) -> None:
    """Refuse what would compute something else, also by settings that are not known here."""
    kind = fields.get("peft_type", None)
    if kind != "LORA":
        raise UnsupportedModel(f"{folder}: peft_type: {shown(kind)} is not implemented, only LORA; {_MERGE}")
    for name, value in fields.items():
        if value and name not in _READ | _WITHOUT_EFFECT:
            remedy = "merge the adapter with PEFT's merge_and_unload and save the model"
            raise UnsupportedModel(f"{folder}: {shown(name)}: is not implemented; {remedy}")
    start = fields.get("init_lora_weights", True)
    if not isinstance(start, bool) and str(start).lower() not in _STARTS:
        remedy = "save it with path_initial_model_for_weight_conversion, which makes a plain adapter of it"
        raise UnsupportedModel(f"{folder}: init_lora_weights: {shown(start)} changes the model too; {remedy}")


def _add(updates: dict[str, Update], name: str, entry: StoredTensor, path: Path) -> None:
    """Put one tensor of an adapter's file in its place."""
    if entry.storage not in FLOATS:
        remedy = f"save the adapter in one of {', '.join(FLOATS)}"
        raise UnsupportedModel(f"{path}: {shown(name)} is stored as {entry.storage}; {remedy}")
    values = Part(entry.shape, partial(_read_stored, entry, name, path))
    if part := _PART.fullmatch(name):
        update, kind = updates.setdefault(f"{part[1]}.weight", Update()), part[3]
        update.embeds = update.embeds or part[2] is not None
        if kind == "magnitude_vector":
            size = max(entry.shape, default=0)
            _put(update, "magnitude", Part((size,), lambda: values.read().reshape(-1)), name, path)
        elif len(entry.shape) != 2:
            problem = f"{shown(name)} has shape {entry.shape}: only matrices can be updated"
            raise UnsupportedModel(f"{path}: {problem}; {_MERGE}")
        elif part[2] is not None:
            _put(update, "up" if kind == "A" else "down", values.turned, name, path)
        else:
            _put(update, "down" if kind == "A" else "up", values, name, path)
    elif (whole := _WHOLE.fullmatch(name)) and "lora_" not in name:
        update = updates.get(f"{whole[1]}.{whole[3]}", Update())
        if whole[2] == ".original_module":  # the model's own, which one of the others replaces
            return
        if not whole[2] or update.whole is None:
            updates[f"{whole[1]}.{whole[3]}"] = replace(update, whole=values)
    else:
        raise UnsupportedModel(f"{path}: {shown(name)} is no part of LoRA that is implemented; merge it with PEFT")


def _read_stored(entry: StoredTensor, name: str, path: Path) -> np.ndarray:
    values = entry.floats()
    assert values is not None  # as `_add` has checked
    return finite(values, name, path)


def _put(update: Update, part: str, values: Part, name: str, path: Path) -> None:
    """Set a part of an update. Raises CorruptWeights where the file has it twice."""
    if getattr(update, part) is not None:
        raise CorruptWeights(f"{path}: {shown(name)} stands there under two names; {_AGAIN}")
    setattr(update, part, values)


def _rank(name: str, update: Update, path: Path) -> int:
    """The rank of an update, 0 for a tensor that is replaced.

    Raises:
        CorruptWeights: a part of it is missing, or its parts do not fit each other.
    """
    if update.whole is not None and update.down is None and update.up is None and update.magnitude is None:
        return 0
    if update.down is None or update.up is None:
        lacking = "lora_B" if update.up is None else "lora_A"
        raise CorruptWeights(f"{path}: {shown(name)} has no {lacking}; {_AGAIN}")
    ranks = update.down.shape[0], update.up.shape[1]
    if ranks[0] != ranks[1] or not ranks[0]:
        raise CorruptWeights(f"{path}: {shown(name)} has matrices of ranks {ranks[0]} and {ranks[1]}; {_AGAIN}")
    return ranks[0]


def _scale(fields: Fields, module: str, rank: int, path: Path) -> float:
    """alpha / rank, or by ``use_rslora`` alpha / sqrt(rank); ``alpha_pattern`` has the alpha of some modules.

    Raises:
        CorruptWeights: by its settings, whose rank PEFT divides by, it has another one.
    """
    where, key = _of_module(fields, "r", "rank_pattern", module)
    said = where.whole(key, rank)
    if said != rank:
        raise CorruptWeights(f"{path}: {shown(module)} has rank {rank}, the settings say {said}; {_AGAIN}")
    where, key = _of_module(fields, "lora_alpha", "alpha_pattern", module)
    return where.number(key, 8.0) / (rank**0.5 if fields.flag("use_rslora", False) else rank)


def _of_module(fields: Fields, name: str, patterns: str, module: str) -> tuple[Fields, str]:
    """The setting `name` for a module: the fields and the key under which it is, of `patterns` the first that fits."""
    own = fields.inner(patterns)
    return next(((own, key) for key, _ in own.items() if _matches(own, key, module)), (fields, name))


def _matches(patterns: Fields, pattern: str, module: str) -> bool:
    """Whether a pattern means a module, as PEFT reads it: an expression for how its name ends."""
    try:
        if _REPEATS_TWICE.search(pattern):  # could take forever
            raise re.error("repeats what is repeated")
        return re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module) is not None
    except re.error as error:
        raise patterns.refuse(shown(pattern), f"cannot be used ({error})") from None
