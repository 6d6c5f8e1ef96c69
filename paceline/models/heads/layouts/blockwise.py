"""Blockwise parallel decoding (Stern, Shazeer and Uszkoreit 2018, section 6), in a layout of Paceline's own.

Each step has a residual feed-forward, ``h + down(relu(up(h)))``, before the target's output head. No other program has
a stable layout for it.
"""

from typing import Any

import numpy as np

from paceline.models.base import NORMED
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
from paceline.models.heads.strict import Settings

NAME = "blockwise"


def matches(files: HeadFiles) -> bool:
    """Whether the config's ``model_type`` is ``blockwise``."""
    return files.values.get("model_type") == NAME


def read(files: HeadFiles, reading: Reading) -> HeadRecord:
    """The head in `files`; see `Layout.read`."""
    settings = Settings(files.values, files.path)
    own = read_own_block(settings)
    settings.skip("model_type")
    target = own.target or reading.print_of(
        files.path, hidden_size=settings.count("hidden_size"), vocab_size=settings.count("vocab_size")
    )
    settings.skip("hidden_size", "vocab_size")
    config = HeadConfig(
        family="blockwise", target=target, taps=(NORMED,), num_steps=settings.count("num_steps"),
        draft_vocab_size=settings.count("draft_vocab_size", target.vocab_size),
        inner_size=settings.count("inner_size"),
    )  # fmt: skip
    ids = read_draft_ids(files, own, config.draft_vocab_size, target.vocab_size)
    return assemble(files, Parts(config, ids, own.card, settings.finish()), str)


def write(record: HeadRecord, tables: TargetTables | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and tensors of `record`; see `Layout.write`."""
    config = record.config
    values = {
        "model_type": NAME, "hidden_size": config.target.hidden_size, "vocab_size": config.target.vocab_size,
        "draft_vocab_size": config.draft_vocab_size, "num_steps": config.num_steps, "inner_size": config.inner_size,
        KEY: own_block(record),
    }  # fmt: skip
    return values, {**record.tensors, **draft_id_tensors(record)}


LAYOUT = Layout(NAME, "blockwise heads; this project's own", matches, read, write, ("blockwise",))
