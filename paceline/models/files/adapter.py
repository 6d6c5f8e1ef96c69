"""LoRA adapters: low-rank updates of a model's matrices (Hu et al. 2022), merged into them where they are read.

`AdaptedCheckpoint` is the model with the adapter as a `Checkpoint` like any other, so that executors, drafters and
caches need to know nothing of it: W + scale * B A, and with DoRA (Liu et al. 2024) its rows scaled to their learned
lengths. Not for reading its files (`adapter_files.py`), for training one (`training/lora.py`) or for several adapters
of one model in memory.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from paceline.errors import CorruptWeights, UnsupportedModel
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.families import family_of
from paceline.models.fields import shown
from paceline.models.files.adapter_files import Adapter, Update, read_adapter
from paceline.models.files.checkpoint import (
    Checkpoint,
    KeepsBlocks,
    LetsGo,
    LiesInFiles,
    Predicts,
    StoredBlocks,
    finite,
)
from paceline.models.files.fingerprint import fingerprint_of
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.files.sources import Source, base_prefix, gguf_sources, transformers_sources, with_prefix

_NUMBER = re.compile(r"\.\d+\.")
_EMBEDDINGS, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


class AdaptedCheckpoint:
    """The weights of `base` with an adapter merged into them; a `Checkpoint` that keeps blocks where `base` does.

    Matrices that the adapter changes are floats; all others are as `base` has them.

    Raises:
        ModelNotFound, CorruptWeights: see `read_adapter`.
        UnsupportedModel: too, or the adapter changes what this model does not have, or has in another shape.
    """

    def __init__(self, base: Checkpoint, path: str | Path) -> None:
        self._base, self._adapter = base, read_adapter(Path(path))
        updates = self._adapter.updates
        _check_architecture(base, self._adapter)
        if not self._adapter.is_gguf:
            updates = with_prefix(updates, base_prefix(base.config))
        self._config = _adapted_config(base.config, updates, self._adapter)
        self._changed: dict[str, tuple[Source, Update]] = {}
        for name, source in _sources(self._config, updates, self._adapter):
            if source.name in updates:
                _check_shape(source, updates[source.name], self._adapter.path)
                self._changed[name] = source, updates[source.name]
        unknown = sorted(updates.keys() - {source.name for source, _ in self._changed.values()})
        if unknown:
            what = f"changes {shown(unknown[0])}" + f" and {len(unknown) - 1} more" * (len(unknown) > 1)
            remedy = "give the model that it was trained on, in the same format"
            raise UnsupportedModel(f"{path}: {what}, which this model does not have; {remedy}")
        _check_order(base.config, self._changed, self._adapter)

    def __reduce__(self):
        """A checkpoint is pickled as its paths."""
        return AdaptedCheckpoint, (self._base, self._adapter.path)

    @property
    def path(self) -> Path:
        """The adapter's folder or file, beside which its draft heads lie."""
        return self._adapter.path

    @property
    def weight_files(self) -> Sequence[Path]:
        """The files that hold the weights, the model's and the adapter's."""
        own = self._base.weight_files if isinstance(self._base, LiesInFiles) else ()
        return (*own, *self._adapter.files)

    @property
    def config(self) -> ModelConfig:
        """See `Checkpoint.config`; with the adapter's vocabulary where it has one of its own."""
        return self._config

    @property
    def fingerprint(self) -> str:
        """See `Checkpoint.fingerprint`."""
        own = fingerprint_of(self._adapter.files)
        return f"{self._base.fingerprint}-{own[:16]}"

    @property
    def storage(self) -> str:
        """See `Checkpoint.storage`: the model's."""
        return self._base.storage

    @cached_property
    def storages(self) -> frozenset[str]:
        """See `KeepsBlocks`."""
        base = self._base.storages if isinstance(self._base, KeepsBlocks) else frozenset({self._base.storage})
        return base | {"F32"}

    def names(self) -> Sequence[str]:
        """See `Checkpoint.names`."""
        own = tuple(self._base.names())
        return own if self._config.tie_word_embeddings or _HEAD in own else (*own, _HEAD)

    def tensor(self, name: str) -> np.ndarray:
        """See `Checkpoint.tensor`."""
        if name not in self._changed:
            return self._base.tensor(self._held(name))
        source, update = self._changed[name]
        stored = self._base.tensor(self._held(name)) if update.whole is None else source.values(update.whole.read())
        if update.up is None or update.down is None:
            return stored
        sums = stored + source.rows(update.up.read()) @ (np.float32(update.scale) * update.down.read())
        if update.magnitude is not None and update.embeds:
            sums *= update.magnitude.read() / np.linalg.norm(sums, axis=0, keepdims=True)
        elif update.magnitude is not None:
            sums *= source.rows(update.magnitude.read()[:, None]) / np.linalg.norm(sums, axis=1, keepdims=True)
        return finite(sums, name, self._adapter.path)

    def blocks(self, name: str) -> StoredBlocks | None:
        """See `KeepsBlocks`; None for what the adapter changes."""
        if name in self._changed or not isinstance(self._base, KeepsBlocks):
            return None
        return self._base.blocks(self._held(name))

    def prediction_layer(self) -> Checkpoint | None:
        """See `Predicts`: the model's own, which the adapter leaves as it is."""
        return self._base.prediction_layer() if isinstance(self._base, Predicts) else None

    def let_go(self) -> None:
        """See `LetsGo`."""
        if isinstance(self._base, LetsGo):
            self._base.let_go()

    def _held(self, name: str) -> str:
        """The tensor of the model that becomes `name`: the embeddings for an output head that shared them."""
        return _EMBEDDINGS if name == _HEAD and self._base.config.tie_word_embeddings else name


def _adapted_config(config: ModelConfig, updates: Mapping[str, Update], adapter: Adapter) -> ModelConfig:
    """The model's config with the adapter's vocabulary, and a head of its own where only one of the two is changed."""
    apart = replace(config, tie_word_embeddings=False)
    theirs = {name: source.name for name, source in _sources(apart, updates, adapter) if name in (_EMBEDDINGS, _HEAD)}
    tables = {name: updates[theirs[name]] for name in (_EMBEDDINGS, _HEAD) if theirs[name] in updates}
    sizes = {name: each.whole.shape[0] for name, each in tables.items() if each.whole and each.whole.shape}
    size = sizes.get(_EMBEDDINGS, config.vocab_size)
    own_head = _HEAD in tables
    grown = size != config.vocab_size
    shares = config.tie_word_embeddings and not own_head and (not tables or adapter.keeps_tie or grown)
    if not shares and sizes.get(_HEAD, config.vocab_size) != size:
        problem = f"its embeddings have {size} tokens, the output head {sizes.get(_HEAD, config.vocab_size)}"
        raise UnsupportedModel(f"{adapter.path}: {problem}; save both with it (modules_to_save)")
    return replace(config, vocab_size=size, tie_word_embeddings=shares)


def _sources(config: ModelConfig, updates: Mapping[str, Update], adapter: Adapter) -> Iterator[tuple[str, Source]]:
    """Where the files that the adapter names its tensors after have those of the model."""
    names = _InAnyLayer(updates)
    return gguf_sources(config, names.__contains__) if adapter.is_gguf else transformers_sources(config, names)


class _InAnyLayer:
    """Names of tensors, of which each stands for those of all layers and experts: an adapter may change a few."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {_NUMBER.sub(".0.", name) for name in names}

    def __contains__(self, name: object) -> bool:
        return _NUMBER.sub(".0.", str(name)) in self._names


def _check_architecture(base: Checkpoint, adapter: Adapter) -> None:
    """Refuse a GGUF adapter of another architecture, whose rows may be in another order."""
    family = family_of(base.config.model_type)
    known = {family.architecture, family.mixture_architecture}
    if isinstance(base, GGUFCheckpoint):
        known = {base.metadata["general.architecture"]}
    if adapter.is_gguf and adapter.architecture not in known:
        problem = (
            f"is an adapter for {shown(adapter.architecture)}, and this model is {' or '.join(filter(None, known))}"
        )
        raise UnsupportedModel(f"{adapter.path}: {problem}; give the model that it was trained on")


def _check_order(config: ModelConfig, changed: Iterable[str], adapter: Adapter) -> None:
    """Refuse changes of gated delta nets, whose heads GGUF may have in another order, in files of the other format."""
    recurrence = config.recurrence
    if recurrence is None or recurrence.kind != "gated_delta_net" or recurrence.tiled == adapter.is_gguf:
        return
    if any(".linear_attn." in name for name in changed):
        problem = "changes recurrent layers, whose heads GGUF files have in another order"
        raise UnsupportedModel(f"{adapter.path}: {problem}; take model and adapter in one format")


def _check_shape(source: Source, update: Update, path: Path) -> None:
    """Refuse an update of a matrix of another shape."""
    wanted = source.file_shape[::-1] if source.transposed else source.file_shape
    for part, found in (
        (wanted, None if update.up is None or update.down is None else (update.up.shape[0], update.down.shape[1])),
        (source.file_shape, None if update.whole is None else update.whole.shape),
    ):
        if found is not None and found != part:
            problem = f"changes {shown(source.name)} of shape {found}, which has {part} here"
            raise UnsupportedModel(f"{path}: {problem}; give the model that it was trained on")
    size = wanted[-1] if update.embeds else wanted[0]
    if update.magnitude is not None and update.magnitude.shape != (size,):
        problem = f"{shown(source.name)} has {update.magnitude.shape[0]} lengths, not {size}"
        raise CorruptWeights(f"{path}: {problem}; save the adapter again")
