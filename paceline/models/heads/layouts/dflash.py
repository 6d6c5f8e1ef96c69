"""DFlash and DSpark as their authors publish them (z-lab, DeepSpec): Qwen3 layers, ``dflash_config``, no embeddings.

Layer numbers name the layer that outputs a state. DFlash2 and Domino have parts that are not supported; they are
refused.
"""

from typing import Any

import numpy as np

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.heads.layer_config import layer_values, read_layer
from paceline.models.heads.layouts.base import (
    HeadFiles,
    Layout,
    Parts,
    Reading,
    TargetTables,
    assemble,
    draft_id_tensors,
    read_draft_ids,
    without,
)
from paceline.models.heads.own_block import KEY, own_block, read_own_block
from paceline.models.heads.record import VARIANTS, HeadConfig, HeadRecord
from paceline.models.heads.shapes import layer_of
from paceline.models.heads.strict import Settings
from paceline.models.heads.taps import canonical_taps, dflash_default, file_ids, told

NAME = "dflash"
_NESTED, _IDS, _MASK = "dflash_config", "target_layer_ids", "mask_token_id"
_NEWER = ("conv_kernel_size", "selector_rank", "projector_type")


def matches(files: HeadFiles) -> bool:
    """Whether the config has ``dflash_config``, or the tensors include a hidden-state norm outside of the layers."""
    names = {name.removeprefix("model.") for name in files.tensors}
    return _NESTED in files.values or {"fc.weight", "hidden_norm.weight"} <= names


def read(files: HeadFiles, reading: Reading) -> HeadRecord:
    """The head in `files`; see `Layout.read`."""
    settings = Settings(files.values, files.path)
    own, nested = read_own_block(settings), settings.inner(_NESTED)
    for name in _NEWER:
        if settings.take(name, nested.take(name, None)) not in (None, "dflash"):
            raise UnsupportedModel(f"{files.path}: {name}: is a part of DFlash2 or Domino; use a DFlash or DSpark head")
    layer = read_layer(settings, model_type="qwen3")
    settings.skip("model_type")
    known = settings.take("num_target_layers", None)
    target = own.target or reading.print_of(
        files.path, hidden_size=settings.take("target_hidden_size", None) or layer.hidden_size,
        vocab_size=layer.vocab_size, num_layers=known,
    )  # fmt: skip
    rank = settings.count("markov_rank", nested.take("markov_rank", 0), 0)
    taps, note = _taps(settings, nested, layer.num_hidden_layers, target.num_hidden_layers, reading)
    anchor = settings.flag("sample_from_anchor", rank > 0)
    size = settings.count("draft_vocab_size", layer.vocab_size)
    ids = read_draft_ids(files, own, size, layer.vocab_size)
    confidence = any("confidence_head." in name for name in files.tensors)
    owns_embedding = any("embed_tokens." in name for name in files.tensors) and own.owns_embedding
    scale = 1.0 if owns_embedding else reading.embedding_scale
    config = HeadConfig(
        family="dspark" if rank or confidence else "dflash", target=target, taps=taps, layer=layer,
        num_layers=layer.num_hidden_layers,
        num_steps=settings.count("block_size", nested.take("block_size", 16), 1 + (not anchor)) - (not anchor),
        draft_vocab_size=size,
        owns_head=any("lm_head." in name for name in files.tensors) and own.owns_head,
        owns_embedding=owns_embedding,
        mask_token_id=settings.take(_MASK, nested.take(_MASK, None)), sample_from_anchor=anchor, markov_rank=rank,
        variant=settings.among("markov_head_type", VARIANTS, "vanilla") if rank else "", confidence=confidence,
        confidence_markov=settings.flag("confidence_head_with_markov", True),
        embedding_scale=own.embedding_scale if own.target else scale,
        max_positions=own.max_positions or layer.max_position_embeddings,
    )  # fmt: skip
    settings.skip("enable_confidence_head", "confidence_head_alpha")
    notes = (note, *settings.finish(), *nested.finish())
    tables = (() if config.owns_head else ("lm_head.",)) + (() if config.owns_embedding else ("embed_tokens.",))
    return assemble(files, Parts(config, ids, own.card, notes), without("model."), tables)


def write(record: HeadRecord, tables: TargetTables | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and tensors of `record`; see `Layout.write`.

    Raises:
        InvalidParameter: its layers are not Qwen3's, the only ones that readers of this layout support.
    """
    config, layer = record.config, layer_of(record.config)
    if not layer.qk_norm:
        raise InvalidParameter("qk_norm", "is off, and this layout means Qwen3's layers", "train with qk_norm")
    nested = {_MASK: config.mask_token_id, _IDS: file_ids(config.taps, "leaving")}
    values = layer_values(layer, config.num_layers) | {
        "architectures": ["DFlashDraftModel" if config.family == "dflash" else "DSparkDraftModel"],
        "block_size": config.block_size, "num_target_layers": config.target.num_hidden_layers,
        "sample_from_anchor": config.sample_from_anchor, _NESTED: nested, KEY: own_block(record),
    }  # fmt: skip
    if config.family == "dspark":
        values |= {
            "markov_rank": config.markov_rank, "markov_head_type": config.variant or "vanilla",
            "enable_confidence_head": config.confidence, "confidence_head_with_markov": config.confidence_markov,
        }  # fmt: skip
    tensors = {**record.tensors, **draft_id_tensors(record, with_mask=True)}
    if record.draft_ids is not None:
        values["draft_vocab_size"] = config.draft_vocab_size
        if tables is not None:
            tensors.setdefault("lm_head.weight", tables.head_rows(record.draft_ids))
    return values, tensors


def _taps(settings: Settings, nested: Settings, num_layers: int, target_layers: int,
          reading: Reading) -> tuple[tuple[int, ...], str]:  # fmt: skip
    ids = settings.take(_IDS, nested.take(_IDS, None))
    if ids is None:
        if not target_layers:
            raise settings.wrong(_IDS, "is missing and the target is not known", "name the target (-m MODEL), too")
        taps = dflash_default(target_layers, num_layers)
        return taps, told(taps, None, "DFlash's default was taken")
    convention = reading.convention or "leaving"
    taps = canonical_taps(ids, convention, target_layers, f"{settings.source}: {_IDS}")
    return taps, told(taps, ids, f"as layers that states {'leave' if convention == 'leaving' else 'enter'}")


LAYOUT = Layout(NAME, "DFlash of z-lab, DSpark of DeepSpec", matches, read, write, ("dflash", "dspark"))
