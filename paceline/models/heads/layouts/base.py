"""`Layout`, the description of a published file format of heads, and the strict assembly of a record (`assemble`).

A layout translates settings and names of tensors; `assemble` then checks names, shapes and completeness against
`shapes.head_shapes`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import CorruptWeights, InvalidParameter
from paceline.models.fields import is_whole
from paceline.models.heads.draft_ids import from_offsets, to_mask, to_offsets
from paceline.models.heads.own_block import OwnBlock, check_ids
from paceline.models.heads.record import MOST_STEPS, HeadConfig, HeadRecord, TargetPrint
from paceline.models.heads.shapes import head_shapes
from paceline.models.heads.taps import Convention
from paceline.models.heads.tensor_file import dequantised

Tensors = Mapping[str, np.ndarray]
Rename = Callable[[str], str]
"""Maps a file's name of a tensor to the record's; an unknown name is returned as it is and refused later."""

_PER_DRAFT_ID = ("lm_head", "head.", "markov_head.markov_w2")
"""Prefixes of the names of tensors with a row per draft id."""
_IGNORED = ("t2d", "rotary_emb.")
_MAP = "d2t"
_MASKED = ("dflash", "dspark", "p_eagle")
"""Families that need a mask token."""
_OF_TARGETS_WIDTH = ("eagle", "mtp", "falcon")
"""Families whose layers read and return states of the target's width."""
_REMEDY = "get the head's own config.json"


@dataclass(frozen=True, eq=False, slots=True)
class HeadFiles:
    """The files of a head: path, values of ``config.json`` and tensors."""

    path: Path
    values: Mapping[str, Any]
    tensors: Tensors


@dataclass(frozen=True, slots=True)
class Reading:
    """Facts from the caller that a file may not contain.

    Attributes:
        target: the model that the head will draft for.
        convention: how the file numbers layers; None to infer it.
        norm_output: whether the state after the last norm is fed back; None to infer it.
        embedding_scale: factor that the target's embedding layer multiplies by (Gemma).
    """

    target: TargetPrint | None = None
    convention: Convention | None = None
    norm_output: bool | None = None
    embedding_scale: float = 1.0

    def target_size(self, name: str, found: int | None, source: object) -> int:
        """A size of the target, from the file (`found`) or from the caller.

        Raises:
            InvalidParameter: neither the file nor the caller has it, or they differ.
        """
        known = getattr(self.target, name) if self.target is not None else None
        if found is None and known is None:
            raise InvalidParameter(
                f"{source}: {name}", "of the target is not in the file", "name the target (-m MODEL), too"
            )
        if found is not None and known is not None and found != known:
            raise InvalidParameter(
                f"{source}: {name}", f"is {found}, the target's is {known}", "use a head that was made for this target"
            )
        return int(found if found is not None else known)  # type: ignore[arg-type]

    def print_of(self, source: object, *, name: str = "", hidden_size: int | None = None,
                 vocab_size: int | None = None, num_layers: int | None = None) -> TargetPrint:  # fmt: skip
        """The target that the head was trained for, as far as the file and the caller tell."""
        layers = num_layers if num_layers is not None else (self.target.num_hidden_layers if self.target else 0)
        return TargetPrint(
            name or (self.target.name if self.target else ""),
            self.target_size("hidden_size", hidden_size, source),
            layers,
            self.target_size("vocab_size", vocab_size, source),
        )


@dataclass(frozen=True, eq=False, slots=True)
class TargetTables:
    """The target's embeddings [V, t] and output head [V, t], which heads without their own share."""

    embedding: np.ndarray
    head: np.ndarray

    def head_rows(self, draft_ids: np.ndarray | None) -> np.ndarray:
        """[Vd, t] rows of the output head for a draft vocabulary; all rows for None."""
        return self.head if draft_ids is None else self.head[draft_ids]


@dataclass(frozen=True, slots=True)
class Layout:
    """A published file format of heads.

    Attributes:
        name: the name that users write.
        about: one line on its families and the programs that read it.
        matches: whether files are of this layout.
        read: converts files to a record. Raises InvalidParameter, UnsupportedModel or CorruptWeights.
        write: config and tensors of a record in this layout. If the target's tables are given, copies of those that
            other programs need are included. None where heads are not written in this layout.
        families: the families that `write` supports.
        file_name: file of the tensors.
    """

    name: str
    about: str
    matches: Callable[[HeadFiles], bool]
    read: Callable[[HeadFiles, Reading], HeadRecord]
    write: Callable[[HeadRecord, TargetTables | None], tuple[dict[str, Any], dict[str, np.ndarray]]] | None = None
    families: tuple[str, ...] = ()
    file_name: str = "model.safetensors"


@dataclass(frozen=True, eq=False, slots=True)
class Parts:
    """The parts of a record besides its tensors, for `assemble`."""

    config: HeadConfig
    draft_ids: np.ndarray | None = None
    card: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_draft_ids(files: HeadFiles, own: OwnBlock, size: int, vocab_size: int) -> np.ndarray | None:
    """[size] target ids of the head's outputs; None where they are the whole vocabulary in order.

    Raises:
        InvalidParameter: the map is missing, damaged, or that of another head.
    """
    ids = None
    if _MAP in files.tensors:
        ids = from_offsets(files.tensors[_MAP], size, vocab_size, files.path)
    elif size != vocab_size:
        raise InvalidParameter(
            f"{files.path}: {_MAP}", f"is missing, though draft_vocab_size={size} is not the target's {vocab_size}",
            "get the complete file: without it nobody knows which tokens the outputs stand for",
        )  # fmt: skip
    if ids is not None and size == vocab_size and np.array_equal(ids, np.arange(size)):
        ids = None
    check_ids(own, ids, files.path)
    return ids


def draft_id_tensors(record: HeadRecord, with_mask: bool = False) -> dict[str, np.ndarray]:
    """The tensor ``d2t`` of the draft vocabulary, with the mask ``t2d`` if wanted; empty without a draft vocabulary."""
    if record.draft_ids is None:
        return {}
    mask = {"t2d": to_mask(record.draft_ids, record.config.target.vocab_size)} if with_mask else {}
    return {_MAP: to_offsets(record.draft_ids)} | mask


def assemble(files: HeadFiles, parts: Parts, rename: Rename, ignored: Iterable[str] = ()) -> HeadRecord:
    """The record of `parts` with the tensors of `files`, all of which are checked.

    Args:
        ignored: prefixes of names (as in the file) that are not read, besides the map to draft ids.

    Raises:
        CorruptWeights: a tensor is unknown, missing, not finite, or of another shape.
        InvalidParameter: there are no steps or more than `MOST_STEPS` layers or steps, the mask is not a token, or the
            head is not of its target's width or vocabulary where it uses the target's tables.
    """
    _check_sizes(files.path, parts.config)
    _check_mask(files.path, parts.config)
    skipped = (*_IGNORED, _MAP, *ignored)
    found: dict[str, np.ndarray] = {}
    for name, values in dequantised(files.tensors, files.path).items():
        if name.startswith(skipped) or any(f".{part}" in name for part in _IGNORED):
            continue
        known = rename(name)
        if known in found and not np.array_equal(found[known], values):
            raise CorruptWeights(f"{files.path}: {name} differs from another tensor that must equal it; get it again")
        found[known] = values
    tensors = _checked(files.path, head_shapes(parts.config), found)
    ids, tensors = _ascending(parts.draft_ids, tensors)
    return HeadRecord(parts.config, tensors, ids, parts.card, parts.notes)


def _check_sizes(path: Path, config: HeadConfig) -> None:
    """Refuse sizes with which a head would read or write beyond its arrays."""
    for name in ("num_steps", "num_layers", "block_depth", "block_tokens"):
        if getattr(config, name) > MOST_STEPS:
            problem = f"{getattr(config, name)} is more than the {MOST_STEPS} that a head can have"
            raise InvalidParameter(f"{path}: {name}", problem, _REMEDY)
    if config.num_steps < 1:
        raise InvalidParameter(f"{path}: num_steps", "the head drafts no token", _REMEDY)
    layer, target = config.layer, config.target
    if layer is None:
        return
    if layer.vocab_size != target.vocab_size:
        raise InvalidParameter(
            f"{path}: vocab_size", f"is {layer.vocab_size}, its target's is {target.vocab_size}", _REMEDY
        )
    shares = not (config.owns_embedding and config.owns_head)
    if layer.hidden_size != target.hidden_size and (shares or config.family in _OF_TARGETS_WIDTH):
        why = "whose embed_tokens or lm_head it shares" if shares else f"which {config.family} heads must have"
        problem = f"is {layer.hidden_size}, its target's, {why}, is {target.hidden_size}"
        raise InvalidParameter(f"{path}: hidden_size", problem, _REMEDY)


def _check_mask(path: Path, config: HeadConfig) -> None:
    """Refuse a mask token outside the target's vocabulary, which would read beyond the embeddings."""
    mask, size = config.mask_token_id, config.target.vocab_size
    if mask is None and config.family not in _MASKED:
        return
    if not is_whole(mask) or not 0 <= mask < size:
        problem = "is missing" if mask is None else f"{mask!r} is no token of the target's vocabulary of {size}"
        raise InvalidParameter(f"{path}: mask_token_id", problem, _REMEDY)


def _ascending(
    ids: np.ndarray | None, tensors: dict[str, np.ndarray]
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """Draft ids in ascending order, and `tensors` with the rows of all output heads permuted accordingly."""
    if ids is None or (np.diff(ids) > 0).all():
        return ids, tensors
    order = np.argsort(ids)
    rows = {name: array[order] for name, array in tensors.items() if name.startswith(_PER_DRAFT_ID)}
    return ids[order], tensors | rows


def _checked(path: Path, shapes: Mapping[str, tuple[int, ...]], found: Tensors) -> dict[str, np.ndarray]:
    missing, unknown = [n for n in shapes if n not in found], [n for n in found if n not in shapes]
    if missing or unknown:
        problems = [
            f"{word} {', '.join(names[:4])}" for word, names in (("lacks", missing), ("holds", unknown)) if names
        ]
        raise CorruptWeights(
            f"{path}: {' and '.join(problems)}{', which its config does not ask for' if unknown else ''}; config and "
            "weights are of different heads or of a form that is not read: get both again, or convert them first"
        )
    tensors: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        values = found[name]
        if values.size != np.prod(shape) or (values.shape != shape and values.ndim == len(shape)):
            problem = f"{name} has shape {list(values.shape)}, the config says {list(shape)}"
            raise CorruptWeights(f"{path}: {problem}; get the head's config and weights again")
        tensors[name] = np.ascontiguousarray(values.reshape(shape), np.float32)
        if not np.isfinite(tensors[name]).all():
            raise CorruptWeights(f"{path}: {name} holds numbers that are not finite; get the head again")
    return tensors


def without(*prefixes: str) -> Rename:
    """A `Rename` that removes the first of `prefixes` that a name has."""

    def rename(name: str) -> str:
        for prefix in prefixes:
            if name.startswith(prefix):
                return name.removeprefix(prefix)
        return name

    return rename
