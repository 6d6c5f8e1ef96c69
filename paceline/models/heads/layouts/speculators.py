"""The layout of vLLM's `speculators` library: eagle3, peagle, dflash, dspark, mtp. vLLM reads it unchanged.

Paceline's heads are saved in it, with an additional object ``paceline`` (`own_block.py`) that other programs ignore.
Layer numbers name the layer that reads a state. A missing ``norm_before_residual`` means true, its trainer's default.
"""

from typing import Any

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.base import NORMED
from paceline.models.heads import draft_ids as vocabulary
from paceline.models.heads.layer_config import layer_values, read_layer
from paceline.models.heads.layouts.base import (
    HeadFiles,
    Layout,
    Parts,
    Reading,
    Rename,
    TargetTables,
    assemble,
    draft_id_tensors,
    read_draft_ids,
)
from paceline.models.heads.own_block import KEY, OwnBlock, own_block, read_own_block
from paceline.models.heads.record import VARIANTS, Family, HeadConfig, HeadRecord
from paceline.models.heads.strict import Settings
from paceline.models.heads.taps import canonical_taps, eagle3_default, file_ids, told
from paceline.models.heads.tensor_file import dequantised

NAME = "speculators"
VERSION = "0.6.0"
"""Version of the format that is written here."""
VERIFIER = "verifier"
"""Entry of a card with the model that vLLM should load as the target, if its name differs from the target's here."""
_FAMILIES: dict[str, Family] = {
    "eagle3": "eagle3", "peagle": "p_eagle", "dflash": "dflash", "dspark": "dspark", "mtp": "mtp"
}  # fmt: skip
_TYPES = {family: name for name, family in _FAMILIES.items()}
_CLASSES = {"eagle3": "Eagle3Speculator", "peagle": "PEagleSpeculator", "dflash": "DFlashSpeculator",
            "dspark": "DSparkSpeculator", "mtp": "MTPDraftModel"}  # fmt: skip
_MTP_NAMES = {
    "mtp_layers.0.input_proj.": "fc.", "mtp_layers.0.hidden_layernorm.": "hidden_norm.",
    "mtp_layers.0.token_layernorm.": "embed_norm.", "mtp_layers.0.final_layernorm.": "norm.",
    "mtp_layers.0.": "layers.0.",
}  # fmt: skip
_TAPS = {"eagle3": "eagle_aux_hidden_state_layer_ids", "p_eagle": "eagle_aux_hidden_state_layer_ids",
         "dflash": "aux_hidden_state_layer_ids", "dspark": "aux_hidden_state_layer_ids"}  # fmt: skip
_STEPS = 3
"""Length of a draft where the file does not say."""
_MARKOV = "markov_head.markov_w1.weight"
_MARKOV_SHORT = "markov_head.markov_w1_drafted.weight"
"""Rows of the drafted tokens and one row for all others; in Paceline's files only, not in copies for other programs."""
_LEFT_ASIDE = (
    "tie_word_embeddings",
    "embed_requires_grad",
    "quantization_config",
    "sliding_window_non_causal",
    "num_nextn_predict_layers",
)


def matches(files: HeadFiles) -> bool:
    """Whether the config has ``speculators_model_type``."""
    return "speculators_model_type" in files.values


def read(files: HeadFiles, reading: Reading) -> HeadRecord:
    """The head in `files`; see `Layout.read`."""
    settings = Settings(files.values, files.path)
    kind = settings.among("speculators_model_type", _FAMILIES)
    own = read_own_block(settings)
    inner = settings.inner("transformer_layer_config")
    config, notes = _config(settings, inner, files, _FAMILIES[kind], own, reading)
    if _FAMILIES[kind] == "eagle3" and "norm_before_residual" not in settings.values:
        notes += ("norm_before_residual: the file does not say; true was taken, as its trainer has it",)
    notes += settings.finish() + inner.finish()
    ids = read_draft_ids(files, own, config.draft_vocab_size, config.target.vocab_size)
    parts = Parts(config, ids, own.card, notes)
    whole = HeadFiles(files.path, files.values, _markov_expanded(dequantised(files.tensors, files.path), config, ids))
    return assemble(whole, parts, _names(config.family), _ignored(config))


def write(record: HeadRecord, tables: TargetTables | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and tensors of `record`; see `Layout.write`."""
    config, kind = record.config, _TYPES[record.config.family]
    if config.layer is None:
        raise InvalidParameter("layer", "is missing", "give the sizes of the head's layers")
    values: dict[str, Any] = {
        "architectures": [_CLASSES[kind]],
        "speculators_model_type": kind,
        "speculators_version": VERSION,
        "speculators_config": _proposal(record, kind),
        "transformer_layer_config": layer_values(config.layer, config.num_layers),
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target.hidden_size,
        **_family_values(config),
        KEY: own_block(record),
    }
    back = {ours: theirs for theirs, ours in _MTP_NAMES.items()} if config.family == "mtp" else {}
    tensors = {_back(name, back): array for name, array in record.tensors.items()}
    if tables is None:
        tensors = _markov_compact(tensors, record)
    elif config.family != "mtp":
        tensors.setdefault("lm_head.weight", tables.head_rows(record.draft_ids))
    if "mask_hidden" in tensors:
        tensors["mask_hidden"] = tensors["mask_hidden"].reshape(1, 1, -1)
    return values, tensors | draft_id_tensors(record, with_mask=True)


def _config(settings: Settings, inner: Settings, files: HeadFiles, family: Family, own: OwnBlock,
            reading: Reading) -> tuple[HeadConfig, tuple[str, ...]]:  # fmt: skip
    settings.skip(*_LEFT_ASIDE, "speculators_version")
    layer = read_layer(inner)
    spec = settings.inner("speculators_config")
    width = settings.take("target_hidden_size", layer.hidden_size)
    target = own.target or reading.print_of(
        files.path, name=str(spec.inner("verifier").take("name_or_path", "")), hidden_size=width,
        vocab_size=layer.vocab_size,
    )  # fmt: skip
    taps, notes = _taps(settings, family, target.num_hidden_layers, reading)
    steps, anchor = _steps(settings, spec, family)
    config = HeadConfig(
        family=family, target=target, taps=taps, layer=layer, num_layers=layer.num_hidden_layers, num_steps=steps,
        draft_vocab_size=settings.count("draft_vocab_size", layer.vocab_size),
        norm_before_fc=settings.flag("norm_before_fc", False), fc_norm=settings.flag("fc_norm", False),
        fc_bias="fc.bias" in files.tensors,
        norm_before_residual=settings.flag("norm_before_residual", family == "eagle3"),
        norm_output=_norm_output(settings, family, reading),
        owns_embedding="embed_tokens.weight" in files.tensors and own.owns_embedding,
        owns_head=_owns_head(files, settings, family, own, layer.vocab_size),
        mask_token_id=settings.take("mask_token_id", None), sample_from_anchor=anchor,
        **_markov(settings, family), embedding_scale=own.embedding_scale,
        max_positions=own.max_positions or layer.max_position_embeddings,
    )  # fmt: skip
    if config.norm_before_fc and config.fc_norm:
        raise settings.wrong("fc_norm", "and norm_before_fc are both on", "a head has one or the other")
    return config, notes


def _owns_head(files: HeadFiles, settings: Settings, family: Family, own: OwnBlock, vocab_size: int) -> bool:
    """Whether ``lm_head`` is the head's own and read from the file, rather than shared with the target."""
    if family == "mtp" or own.target is not None:
        return family != "mtp" and own.owns_head
    return "lm_head.weight" in files.tensors or settings.take("draft_vocab_size", vocab_size) != vocab_size


def _norm_output(settings: Settings, family: Family, reading: Reading) -> bool:
    """Whether the state after the last norm is fed back: the file's ``norm_output``, true by default for MTP only."""
    said = settings.flag("norm_output", family == "mtp")
    return said if reading.norm_output is None else reading.norm_output


def _taps(
    settings: Settings, family: Family, num_layers: int, reading: Reading
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    if family == "mtp":
        return (NORMED,), ()
    name = _TAPS[family]
    ids = settings.take(name, None)
    if ids is None:
        if not num_layers:
            raise settings.wrong(name, "is missing and the target is not known", "name the target (-m MODEL), too")
        taps = eagle3_default(num_layers)
        return taps, (told(taps, None, "the format's default was taken"),)
    convention = reading.convention or "entering"
    taps = canonical_taps(ids, convention, num_layers, f"{settings.source}: {name}")
    return taps, (told(taps, ids, f"as layers that states {'enter' if convention == 'entering' else 'leave'}"),)


def _steps(settings: Settings, spec: Settings, family: Family) -> tuple[int, bool]:
    methods = spec.objects("proposal_methods")
    spec.skip("algorithm", "default_proposal_method", "verifier")
    anchor = settings.flag("sample_from_anchor", family == "dspark")
    if family in ("dflash", "dspark"):
        return settings.count("block_size", 8, least=1 + (not anchor)) - (not anchor), anchor
    settings.skip("block_size")
    return methods[0].count("speculative_tokens", _STEPS) if methods else _STEPS, False


def _markov(settings: Settings, family: Family) -> dict[str, Any]:
    if family != "dspark":
        return {}
    rank = settings.count("markov_rank", 256, 0)
    return {
        "markov_rank": rank,
        "variant": settings.among("markov_head_type", VARIANTS, "vanilla") if rank else "",
        "confidence": settings.flag("enable_confidence_head", True),
        "confidence_markov": settings.flag("confidence_head_with_markov", True),
    }


def _names(family: Family) -> Rename:
    def rename(name: str) -> str:
        name = name.removeprefix("model.")
        if family != "mtp":
            return name
        return next((ours + name.removeprefix(t) for t, ours in _MTP_NAMES.items() if name.startswith(t)), name)

    return rename


def _back(name: str, table: dict[str, str]) -> str:
    return next((theirs + name.removeprefix(ours) for ours, theirs in table.items() if name.startswith(ours)), name)


def _ignored(config: HeadConfig) -> tuple[str, ...]:
    """Prefixes of tensors that are not read: copies of the target's tables that trainers leave in the file."""
    tables = () if config.owns_embedding else ("embed_tokens.",)
    heads = () if config.owns_head else ("lm_head.",)
    return ("verifier_norm.", "verifier_lm_head.", *tables, *heads)


def _markov_compact(tensors: dict[str, np.ndarray], record: HeadRecord) -> dict[str, np.ndarray]:
    """`tensors` with one row of the Markov table for all tokens outside the draft vocabulary, if those are equal."""
    ids, table = record.draft_ids, tensors.get(_MARKOV)
    if ids is None or table is None:
        return tensors
    others = table[~vocabulary.to_mask(ids, len(table))]
    if not len(others) or (others != others[0]).any():
        return tensors
    short = np.concatenate([table[ids], others[:1]])
    return {_MARKOV_SHORT if name == _MARKOV else name: short if name == _MARKOV else t for name, t in tensors.items()}


def _markov_expanded(
    tensors: dict[str, np.ndarray], config: HeadConfig, ids: np.ndarray | None
) -> dict[str, np.ndarray]:
    """`tensors` with the whole Markov table by target id, the inverse of `_markov_compact`."""
    short = tensors.pop(_MARKOV_SHORT, None)
    if short is None:
        return tensors
    if ids is None or short.shape != (ids.size + 1, config.markov_rank):
        raise InvalidParameter(_MARKOV_SHORT, f"has shape {short.shape}", "get config and weights again")
    table = np.repeat(short[-1:], config.target.vocab_size, axis=0)
    table[ids] = short[:-1]
    return tensors | {_MARKOV: table}


def _proposal(record: HeadRecord, kind: str) -> dict[str, Any]:
    name = record.card.get(VERIFIER) or record.config.target.name
    architectures = record.card.get("target_architectures")
    method = {
        "proposal_type": "greedy", "speculative_tokens": record.config.num_steps, "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }  # fmt: skip
    verifier = {"name_or_path": name, "architectures": architectures or ["LlamaForCausalLM"]}
    return {"algorithm": kind, "proposal_methods": [method], "default_proposal_method": "greedy", "verifier": verifier}


def _family_values(config: HeadConfig) -> dict[str, Any]:
    if config.family == "mtp":
        return {"num_nextn_predict_layers": 1}
    taps = {_TAPS[config.family]: file_ids(config.taps, "entering")}
    if config.family in ("eagle3", "p_eagle"):
        flags = {
            "norm_before_residual": config.norm_before_residual, "norm_before_fc": config.norm_before_fc,
            "fc_norm": config.fc_norm, "norm_output": config.norm_output, "embed_requires_grad": config.owns_embedding,
        }  # fmt: skip
        return taps | flags | ({"mask_token_id": config.mask_token_id} if config.family == "p_eagle" else {})
    values = taps | {
        "block_size": config.block_size, "mask_token_id": config.mask_token_id,
        "sample_from_anchor": config.sample_from_anchor,
    }  # fmt: skip
    if config.family == "dspark":
        values |= {
            "markov_rank": config.markov_rank, "markov_head_type": config.variant or "vanilla",
            "enable_confidence_head": config.confidence, "confidence_head_with_markov": config.confidence_markov,
        }  # fmt: skip
    return values


LAYOUT = Layout(
    NAME, "eagle3, peagle, dflash, dspark, mtp; vLLM reads it", matches, read, write, tuple(_TYPES)
)  # fmt: skip
