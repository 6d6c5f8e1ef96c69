"""Maps each tensor of a model to a file's tensor: its name there, its rows, and the transformations to undo.

Built from the tables of `families.py`. Not for reading bytes (`safetensors_folder.py`, `gguf_file.py`).
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from paceline.errors import CorruptWeights
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.families import family_of
from paceline.models.architecture.family import GGUF_PARTS, Family
from paceline.models.architecture.positions import rotary_dim
from paceline.models.architecture.recurrence import Recurrence
from paceline.models.architecture.tensor_names import each_tensor
from paceline.models.files.checkpoint import ENTRANCE

_Value = TypeVar("_Value")
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(\w+)")
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_MOST_NAMED = 3
_CONVOLUTIONS = ("conv.conv", "linear_attn.conv1d")
"""Parts that transformers stores as [channels, 1, kernel]."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a file stores one tensor of a model.

    Attributes:
        name, file_shape: name and shape of the file's tensor. shape: shape of the model's tensor.
        first: the first row in the file's tensor (after undoing `transposed`; leading axes are flattened to rows).
        every, run: of every `every` rows `run` are ours, from `first` on; 0 for rows that lie together.
        transposed: whether the file stores [in, out], one matrix or several. either: whether its shape tells instead.
        pairs: number of heads whose rows are interleaved as pairs (2i, 2i + 1) instead of halves; 0 for none. If
            `in_halves`, they are not, but those that turn come last.
        turned: how many rows of such a head are interleaved, its first ones or (`turns_last`) its last ones, which are
            the first of ours; 0 for all.
        shift: is added to the values.
        log_of_negative: whether the model's tensor is log(-x) of the file's x.
        second_half_first: whether the columns that are our second half come first.
    """

    name: str
    file_shape: tuple[int, ...]
    shape: tuple[int, ...]
    first: int = 0
    transposed: bool = False
    pairs: int = 0
    turned: int = 0
    shift: float = 0.0
    every: int = 0
    run: int = 0
    turns_last: bool = False
    in_halves: bool = False
    either: bool = False
    log_of_negative: bool = False
    second_half_first: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the file's tensor holds this tensor only."""
        return np.prod(self.shape, dtype=object) == np.prod(self.file_shape, dtype=object)

    def values(self, stored: np.ndarray) -> np.ndarray:
        """The model's tensor, float32, from the file's tensor `stored`."""
        stored = (stored.swapaxes(-2, -1) if self.transposed else stored).reshape(-1, *self.shape[1:])
        values = self.rows(stored)
        if self.log_of_negative:
            values = np.log(-values)
        if self.second_half_first:
            values = np.roll(values, values.shape[1] // 2, axis=1)
        return np.ascontiguousarray(values + np.float32(self.shift) if self.shift else values)

    def rows(self, stored: np.ndarray) -> np.ndarray:
        """The model's rows [n, ...], in its order, of the file's rows [rows, ...]; values or bytes."""
        part = stored[self.first : self.first + self.shape[0]]
        if self.every:
            runs = stored.reshape(-1, self.every, *stored.shape[1:])[:, self.first : self.first + self.run]
            part = runs.reshape(-1, *stored.shape[1:])
        if not self.pairs:
            return part
        heads = part.reshape(self.pairs, part.shape[0] // self.pairs, -1)
        size = self.turned or heads.shape[1]
        turned, rest = (heads[:, -size:], heads[:, :-size]) if self.turns_last else (heads[:, :size], heads[:, size:])
        halves = turned
        if not self.in_halves:
            halves = turned.reshape(self.pairs, size // 2, 2, -1).swapaxes(1, 2).reshape(turned.shape)
        return np.concatenate([halves, rest], axis=1).reshape(part.shape)


def transformers_sources(config: ModelConfig, names: Container[str]) -> Iterator[tuple[str, Source]]:
    """(name, source) of every tensor in the files that transformers writes; `names` are those of the tensors there,
    which tell whether experts have gate and up in one."""
    family = family_of(config.model_type)
    first = family.layers.format(config.experts.first_k_dense_replace if config.experts else 0)
    apart = f"{first}.mlp.experts.0.gate_proj.weight" in names
    stacked = {k: v for k, v in family.stacked.items() if not (apart and k.startswith("mlp.experts."))}
    places = _Places(config, stacked, family.woven)
    for name, shape in each_tensor(config):
        number, part, kind = _taken_apart(name)
        expert = _EXPERT.fullmatch(part)
        place = places.of(f"mlp.experts.{expert[2]}" if expert else part, shape[0])
        theirs = _transformers_name(
            family, _file_number(config, number, part), place.part, expert[1] if expert else None, kind
        )
        is_norm = "norm" in part and kind == "weight"
        transposed = part.startswith(family.transposed) and kind == "weight" and len(shape) == 2
        whole = (place.rows, *shape[1:])
        if part in _CONVOLUTIONS and kind == "weight":
            whole = (shape[0], 1, shape[1])
        yield name, Source(
            theirs, whole[::-1] if transposed else whole, shape, place.first, transposed,
            pairs=_heads(config, part) if family.interleaved or family.latent else 0, turned=rotary_dim(config),
            shift=family.norm_shift if is_norm and part != "linear_attn.norm" else 0.0, every=place.every,
            run=place.run, turns_last=family.latent, in_halves=family.latent and not family.interleaved,
            either=family.either and expert is not None,
        )  # fmt: skip


def gguf_sources(config: ModelConfig, has_tensor: Callable[[str], bool]) -> Iterator[tuple[str, Source]]:
    """(name, source) of every tensor in a GGUF file; `has_tensor` tells whether the converter stacked tensors."""
    family = family_of(config.model_type)
    names = {**GGUF_PARTS, **family.gguf_names}
    kinds = [config.attention_layers[0], *(config.recurrence.layers[:1] if config.recurrence else ())]

    def has(part: str) -> bool:
        return any(has_tensor(f"blk.{config.file_number(layer, is_mlp=False)}.{part}.weight") for layer in kinds)

    stacked = {k: v for k, v in family.gguf_stacked.items() if k == "ffn_up" or has(k)}
    woven = {k: v for k, v in family.gguf_woven.items() if has(k)}
    places = _Places(config, stacked, woven)
    for name, shape in each_tensor(config):
        number, part, kind = _taken_apart(name)
        prefix = "" if number is None else f"blk.{_file_number(config, number, part)}."
        expert = _EXPERT.fullmatch(part)
        if expert:
            assert config.experts is not None
            place = places.of(f"mlp.experts.{expert[2]}", shape[0])
            stem, first = names.get(place.part, place.part), int(expert[1]) * place.rows + place.first
            whole = config.experts.num_experts, place.rows, *shape[1:]
            yield name, Source(f"{prefix}{stem}.{kind}", whole, shape, first)
            continue
        place = places.of(part, shape[0])
        whole = (shape[1],) if part == "mlp.shared_expert_gate" else (place.rows, *shape[1:])
        stem = names.get(f"{part}.{kind}") or f"{names.get(place.part, place.part)}.{kind}"
        if config.recurrence and config.recurrence.kind == "state_space":
            whole = _of_state_space(config.recurrence, part, whole)
        is_transposed = place.part == "self_attn.k_b_proj"
        if place.part in ("self_attn.k_b_proj", "self_attn.v_b_proj"):  # a matrix for each head
            own = (shape[0] // config.num_attention_heads, shape[1])
            whole = (config.num_attention_heads, *(own[::-1] if is_transposed else own))
        yield name, Source(
            f"{prefix}{stem}", whole, shape, place.first, is_transposed,
            pairs=_heads(config, part) if family.pairs or family.interleaved or family.latent else 0,
            turned=rotary_dim(config), every=place.every, run=place.run, turns_last=family.latent,
            in_halves=family.latent and not family.interleaved, log_of_negative=part == "linear_attn.A_log",
        )  # fmt: skip


def _of_state_space(recurrence: Recurrence, part: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """GGUF's shape of a part of a state space layer: numbers of heads lie in columns, norms of groups in rows."""
    if part in ("linear_attn.A_log", "linear_attn.D"):
        return (*shape, 1)
    groups = recurrence.key_heads
    return (groups, shape[0] // groups) if part == "linear_attn.norm" and groups > 1 else shape


def check_complete(sources: Iterator[tuple[str, Source]], found: Mapping[str, tuple[int, ...]],
                   file: object) -> dict[str, Source]:  # fmt: skip
    """The sources by tensor name, after checking them against the tensors `found` in a file (name to shape).

    Raises:
        CorruptWeights: naming `file` and the first tensors that are missing or have another shape.
    """
    out, missing = {}, []
    for name, source in sources:
        shape = found.get(source.name)
        if source.either and shape == source.file_shape[::-1]:
            source = replace(source, file_shape=shape, transposed=not source.transposed)
        if shape is None:
            missing.append(source.name)
            if len(missing) == _MOST_NAMED:
                break
        elif tuple(shape) not in (source.file_shape, (1, *source.file_shape)):
            raise CorruptWeights(
                f"{file}: {source.name} has shape {tuple(shape)}, the configuration says {source.file_shape}; "
                "configuration and weights are of different models, download both again"
            )
        out[name] = source
    if missing:
        raise CorruptWeights(f"{file}: tensors are missing, first {', '.join(missing)}; download the model again")
    return out


class Prediction(NamedTuple):
    """What a file calls the parts of its layer for multi-token prediction.

    Attributes:
        renamed: prefixes of a one-layer model's names to those of the layer.
        entrance: names of the tensors `checkpoint.ENTRANCE`.
        state_first: whether the projection reads the hidden state before the embedding.
    """

    renamed: Mapping[str, str]
    entrance: Sequence[str]
    state_first: bool = False

    def own(self, name: str) -> str:
        """The name here of a one-layer model's tensor `name`."""
        return next((ours + name.removeprefix(of) for of, ours in self.renamed.items() if name.startswith(of)), name)


def transformers_prediction(config: ModelConfig, names: Container[str]) -> Prediction | None:
    """The names in a model folder with the tensors `names`; None where there is no such layer.

    They are Qwen's (``mtp.``), MiMo's (``model.mtp_layers.0.``), or those of DeepSeek and GLM, whose layer has the
    number after the last one.
    """
    family = family_of(config.model_type)
    first, after = (f"{family.layers.format(number)}." for number in (0, config.num_file_layers))
    norm = f"{family.names.get('model.norm', 'model.norm')}."
    mimo, qwen = "model.mtp_layers.0.", ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    for own, layer, last, stems in (
        ("mtp.", "mtp.layers.0.", "mtp.norm.", qwen), ("model.mtp.", "model.mtp.layers.0.", "model.mtp.norm.", qwen),
        (mimo, mimo, f"{mimo}final_layernorm.", ("input_proj", "token_layernorm", "hidden_layernorm")),
        (after, after, f"{after}shared_head.norm.", ("eh_proj", "enorm", "hnorm")),
    ):  # fmt: skip
        entrance = [f"{own}{stem}.weight" for stem in stems]
        if entrance[0] in names:
            return Prediction({first: layer, norm: last}, entrance, state_first=own == mimo)
    return None


def gguf_prediction(config: ModelConfig, names: Container[str]) -> Prediction | None:
    """As `transformers_prediction`, in a GGUF file; a layer without a final norm of its own has the model's.

    None for Nemotron, too, whose layer is not implemented.
    """
    after = f"blk.{config.num_file_layers}."
    if config.sublayers or f"{after}nextn.eh_proj.weight" not in names:
        return None
    norm = f"{after}nextn.shared_head_norm."
    own = {"output_norm.": norm} if f"{norm}weight" in names else {}
    stems = ("eh_proj", "enorm", "hnorm")
    return Prediction({"blk.0.": after, **own}, [f"{after}nextn.{stem}.weight" for stem in stems])


def prediction_sources(
    config: ModelConfig, sources: Iterable[tuple[str, Source]], prediction: Prediction, shift: float = 0.0
) -> Iterator[tuple[str, Source]]:  # fmt: skip
    """(name, source) of every tensor of a layer for multi-token prediction, `ENTRANCE` included.

    Args:
        config: of the layer (`ModelConfig.of_prediction`).
        sources: those of a one-layer model.
        shift: see `Source`; of the norms of the entrance.
    """
    for name, source in sources:
        yield name, replace(source, name=prediction.own(source.name))
    size = config.hidden_size
    for name, theirs in zip(ENTRANCE, prediction.entrance, strict=True):
        if "norm" in name:
            yield name, Source(theirs, (size,), (size,), shift=shift)
        else:
            shape = size, 2 * size
            yield name, Source(theirs, shape, shape, second_half_first=prediction.state_first)


def check_transformers_layers(
    config: ModelConfig, names: Iterable[str], folder: object, predicting: int = 0
) -> None:  # fmt: skip
    """Raise CorruptWeights where the tensors `names` of a model folder have more layers than the config, and than the
    layers for multi-token prediction after these (``num_nextn_predict_layers``), which are left out."""
    family = family_of(config.model_type)
    field = family.keys.get("num_hidden_layers", "num_hidden_layers")
    _check_layers(config.num_file_layers + predicting, names, family.layers, field, folder)


def check_gguf_layers(config: ModelConfig, metadata: Mapping[str, Any], names: Iterable[str], file: object) -> None:
    """Raise CorruptWeights where the tensors `names` of a GGUF file have more layers than its `metadata` says.

    The last of them may be layers for multi-token prediction, which the config leaves out.
    """
    field = f"{metadata['general.architecture']}.block_count"
    _check_layers(metadata[field], names, "blk.{}", field, file)


def _check_layers(said: int, names: Iterable[str], layer: str, field: str, file: object) -> None:
    """Refuse layers that would be left out: the text would be another model's.

    In most model folders, layers for multi-token prediction have another prefix (``mtp.``, ``model.mtp_layers.``).
    """
    number = re.compile(re.escape(layer).replace(r"\{\}", "([0-9]{1,9})") + r"\.")
    stored = 1 + max((int(found[1]) for name in names if (found := number.match(name))), default=-1)
    if stored > said:
        raise CorruptWeights(
            f"{file}: {field}: the configuration says {said}, the weights have {stored} layers; set it to {stored} "
            "if it was edited, or download the model again"
        )


def base_prefix(config: ModelConfig) -> str:
    """transformers' prefix of all names except the output head's; checkpoints of the bare model omit it."""
    return family_of(config.model_type).layers.split(".")[0] + "."


def with_prefix(named: Mapping[str, _Value], prefix: str) -> dict[str, _Value]:
    """`named` with the tensor names of the causal language model, whose prefix is `prefix` (`base_prefix`).

    A checkpoint of the bare model lacks the prefix; a multimodal one has the language model under another prefix.
    """
    for inner in ("language_model.model.", "model.language_model."):
        if any(name.startswith(inner) for name in named):
            return {_without(name, inner, prefix): value for name, value in named.items()}
    if any(name.startswith(prefix) for name in named):
        return dict(named)
    return {name if name.startswith("lm_head.") else prefix + name: value for name, value in named.items()}


def _without(name: str, inner: str, prefix: str) -> str:
    if name.startswith(inner):
        return prefix + name.removeprefix(inner)
    return name.removeprefix("language_model.")


class _Place(NamedTuple):
    """The file's part that holds one of ours, its number of rows, and which of them are ours (see `Source`)."""

    part: str
    rows: int
    first: int = 0
    every: int = 0
    run: int = 0


class _Places:
    """The parts that a file keeps in one tensor, one after another (`stacked`) or in turn (`woven`), which is head by
    head in attention, key head by key head in gated delta nets, and row by row elsewhere."""

    def __init__(
        self, config: ModelConfig, stacked: Mapping[str, tuple[str, ...]],
        woven: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:  # fmt: skip
        rows = _rows_of_parts(config)
        turns_of = {"self_attn": config.num_attention_heads}
        if config.recurrence:
            turns_of["linear_attn"] = config.recurrence.key_heads
        self._of: dict[str, _Place] = {}
        for theirs, parts in stacked.items():
            held, sizes = _held(parts, rows)
            for i, part in enumerate(held):
                self._of[part] = _Place(theirs, sum(sizes), sum(sizes[:i]))
        for theirs, parts in (woven or {}).items():
            held, sizes = _held(parts, rows)
            runs = [size // turns_of.get(parts[0].split(".")[0], sizes[0]) for size in sizes]
            for i, part in enumerate(held):
                self._of[part] = _Place(theirs, sum(sizes), sum(runs[:i]), sum(runs), runs[i])

    def of(self, part: str, rows: int) -> _Place:
        """Where `part` of so many `rows` is."""
        return self._of.get(part, _Place(part, rows))


def _rows_of_parts(config: ModelConfig) -> dict[str, int]:
    """Rows of each part that the model has, in the first layer that has it; ``mlp.experts.*`` of one expert."""
    rows: dict[str, int] = {}
    if config.experts:  # there may be tens of thousands of tensors, of which these are like all others
        config = replace(config, experts=config.experts.without_the_rest())
    for name, shape in each_tensor(config):
        _, part, _ = _taken_apart(name)
        expert = _EXPERT.fullmatch(part)
        rows.setdefault(f"mlp.experts.{expert[2]}" if expert else part, shape[0])
    return rows


def _held(parts: Iterable[str], rows: Mapping[str, int]) -> tuple[list[str], list[int]]:
    """Those of `parts` that the model has, and their rows."""
    held = [part for part in parts if part in rows]
    return held, [rows[part] for part in held]


def _taken_apart(name: str) -> tuple[int | None, str, str]:
    """(layer number or None, part, ``weight`` or ``bias``) of a tensor's name."""
    layer = _LAYER.fullmatch(name)
    if layer:
        return int(layer[1]), layer[2], layer[3]
    stem, kind = name.rsplit(".", 1)
    return None, stem, kind


def _file_number(config: ModelConfig, number: int | None, part: str) -> int | None:
    """The number that files give a part of layer `number`; None outside layers."""
    is_mlp = part == "post_attention_layernorm" or part.startswith("mlp.")
    return None if number is None else config.file_number(number, is_mlp)


def _transformers_name(family: Family, number: int | None, part: str, expert: str | None, kind: str) -> str:
    theirs = family.names.get(part, part)
    if expert is not None:
        stem, last = theirs.rsplit(".", 1)
        theirs = f"{stem}.{expert}.{last}"
    whole = family.names.get(f"{part}.{kind}", f"{theirs}.{kind}")
    return whole if number is None else f"{family.layers.format(number)}.{whole}"


def _heads(config: ModelConfig, part: str) -> int:
    """The number of heads of queries or keys, whose rows a file may interleave; 0 for other parts."""
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads,
             "self_attn.q_b_proj": config.num_attention_heads, "self_attn.kv_a_proj": 1}  # fmt: skip
    return heads.get(part, 0)
