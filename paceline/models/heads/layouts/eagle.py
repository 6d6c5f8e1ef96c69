"""EAGLE-1, EAGLE-2 and HASS, which share a file format (SafeAILab/EAGLE, `cnets1.py`).

Layer 0 has no norm before attention. The final norm and the output head are the target's and are not stored. The
config's ``bias`` is that of ``fc``; where it is missing it is true. Only Paceline's files have a draft vocabulary
(``d2t``); copies for other programs omit it, which changes no weight. Not for EAGLE-3 (`eagle3.py`).
"""

from typing import Any

import numpy as np

from paceline.models.base import NORMED
from paceline.models.heads import draft_ids as vocabulary
from paceline.models.heads.layer_config import layer_values, read_layer
from paceline.models.heads.layouts.base import (
    HeadFiles,
    Layout,
    Parts,
    Reading,
    TargetTables,
    assemble,
    draft_id_tensors,
    without,
)
from paceline.models.heads.own_block import KEY, check_ids, own_block, read_own_block
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.heads.shapes import layer_of
from paceline.models.heads.strict import Settings
from paceline.models.heads.whole_vocabulary import naming_all

NAME = "eagle"
_STEPS = 5
"""Depth of the authors' draft trees; the files have none."""


def matches(files: HeadFiles) -> bool:
    """Whether the tensors have a decoder layer and ``fc``, and none of EAGLE-3's parts."""
    names = {name.removeprefix("model.") for name in files.tensors}
    newer = any(name.startswith(("midlayer.", "hidden_norm", "markov_head.")) for name in names)
    plain = "fc.weight" in names and "layers.0.self_attn.q_proj.weight" in names
    return plain and not newer and "layers.0.hidden_norm.weight" not in names and "norm.weight" not in names


def read(files: HeadFiles, reading: Reading) -> HeadRecord:
    """The head in `files`; see `Layout.read`."""
    settings = Settings(files.values, files.path)
    own = read_own_block(settings)
    layer = read_layer(settings)
    settings.skip("model_type", "draft_vocab_size")
    name = next((key for key in ("bias", "eagle_fc_bias") if key in settings.values), "bias")
    target = own.target or reading.print_of(files.path, hidden_size=layer.hidden_size, vocab_size=layer.vocab_size)
    offsets = files.tensors.get("d2t") if own.target is not None else None
    size = layer.vocab_size if offsets is None else len(offsets)
    ids = None if offsets is None else vocabulary.from_offsets(offsets, size, target.vocab_size, files.path)
    check_ids(own, ids, files.path)
    config = HeadConfig(
        family="eagle", target=target, taps=(NORMED,), layer=layer, num_layers=layer.num_hidden_layers,
        num_steps=_STEPS, draft_vocab_size=size, fc_bias=settings.flag(name, True),
        owns_embedding=own.owns_embedding and any("embed_tokens" in tensor for tensor in files.tensors),
        max_positions=own.max_positions or layer.max_position_embeddings,
    )  # fmt: skip
    said = f"{name}={config.fc_bias}" if name in settings.values else "absent, which means true"
    notes = (f"bias of fc: {said}", *settings.finish())
    ignored = () if config.owns_embedding else ("embed_tokens.",)
    return assemble(files, Parts(config, ids, own.card, notes), without("model."), (*ignored, "layers.0.dummy"))


def write(record: HeadRecord, tables: TargetTables | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and tensors of `record`; see `Layout.write`."""
    if tables is not None:
        record = naming_all(record)
    config = record.config
    values = layer_values(layer_of(config), config.num_layers)
    values |= {"architectures": ["LlamaForCausalLMEagle"], "bias": config.fc_bias, KEY: own_block(record)}
    return values, {**record.tensors, **draft_id_tensors(record)}


LAYOUT = Layout(NAME, "EAGLE-1, EAGLE-2, HASS; SGLang and vLLM read it", matches, read, write, ("eagle",))
