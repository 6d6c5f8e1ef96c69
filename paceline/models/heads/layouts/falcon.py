"""Falcon (Gao et al. 2024, arXiv 2412.12639), in a layout of Paceline's own.

Two LSTM layers with torch's names, then a decoder layer with the names of EAGLE-1. The authors' code does not run, so
there is no layout of theirs to read.
"""

from typing import Any

import numpy as np

from paceline.models.base import NORMED
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
)
from paceline.models.heads.own_block import KEY, own_block, read_own_block
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.heads.shapes import layer_of
from paceline.models.heads.strict import Settings

NAME = "falcon"
ARCHITECTURE = "FalconDraftHead"


def matches(files: HeadFiles) -> bool:
    """Whether the config's ``architectures`` is `ARCHITECTURE`."""
    return files.values.get("architectures") == [ARCHITECTURE]


def read(files: HeadFiles, reading: Reading) -> HeadRecord:
    """The head in `files`; see `Layout.read`."""
    settings = Settings(files.values, files.path)
    own = read_own_block(settings)
    layer = read_layer(settings)
    settings.skip("architectures", "model_type")
    target = own.target or reading.print_of(files.path, hidden_size=layer.hidden_size, vocab_size=layer.vocab_size)
    config = HeadConfig(
        family="falcon", target=target, taps=(NORMED,), layer=layer, num_layers=1,
        num_steps=settings.count("num_steps"), block_tokens=settings.count("block_tokens"),
        draft_vocab_size=settings.count("draft_vocab_size", target.vocab_size),
        max_positions=own.max_positions or layer.max_position_embeddings,
    )  # fmt: skip
    ids = read_draft_ids(files, own, config.draft_vocab_size, target.vocab_size)
    return assemble(files, Parts(config, ids, own.card, settings.finish()), str)


def write(record: HeadRecord, tables: TargetTables | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and tensors of `record`; see `Layout.write`."""
    config = record.config
    values = layer_values(layer_of(config), config.num_layers) | {
        "architectures": [ARCHITECTURE], "draft_vocab_size": config.draft_vocab_size, "num_steps": config.num_steps,
        "block_tokens": config.block_tokens, KEY: own_block(record),
    }  # fmt: skip
    return values, {**record.tensors, **draft_id_tensors(record)}


LAYOUT = Layout(NAME, "Falcon; this project's own", matches, read, write, ("falcon",))
