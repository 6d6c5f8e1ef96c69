"""Medusa as vLLM read it before 0.33: ``blocks.{head}.layers.{block}``, ``lm_heads.{head}``, a map of token ids.

Paceline's Medusa heads that share the target's output head are saved with ``original_lm_head``. Not for files of the
Medusa repository (`medusa.py`).
"""

from typing import Any

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.base import NORMED
from paceline.models.heads.draft_ids import checked_ids
from paceline.models.heads.layouts.base import HeadFiles, Layout, Parts, Reading, TargetTables, assemble, without
from paceline.models.heads.own_block import KEY, check_ids, own_block, read_own_block
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.heads.strict import Settings

NAME = "medusa-vllm"
_MAP = "token_map"


def matches(files: HeadFiles) -> bool:
    """Whether ``model_type`` is ``medusa``, or tensors have names of this layout."""
    return files.values.get("model_type") == "medusa" or any(
        name.removeprefix("medusa_heads.").startswith("blocks.0.layers.0.") for name in files.tensors
    )


def read(files: HeadFiles, reading: Reading) -> HeadRecord:
    """The head in `files`; see `Layout.read`."""
    settings = Settings(files.values, files.path)
    settings.skip("model_type", "max_paths", "topk", "max_seq_len", "num_lookahead_tokens")
    own = read_own_block(settings)
    width, vocab_size = settings.count("hidden_size"), settings.count("vocab_size")
    target = own.target or reading.print_of(files.path, hidden_size=width, vocab_size=vocab_size)
    shares = settings.flag("original_lm_head", False)
    config = HeadConfig(
        family="medusa", target=target, taps=(NORMED,), num_steps=settings.count("num_heads"),
        draft_vocab_size=settings.count("truncated_vocab_size", vocab_size),
        fc_bias=settings.flag("medusa_fc_bias", False), owns_head=not shares,
        block_depth=settings.count("num_hidden_layers", 1),
    )  # fmt: skip
    ids = _draft_ids(files, config)
    check_ids(own, ids, files.path)
    ignored = (_MAP, "medusa_heads.token_map", *(("lm_head", "medusa_heads.lm_head") if shares else ()))
    return assemble(files, Parts(config, ids, own.card, settings.finish()), without("medusa_heads."), ignored)


def write(record: HeadRecord, tables: TargetTables | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and tensors of `record`; see `Layout.write`."""
    config = record.config
    values = {
        "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": config.target.hidden_size,
        "vocab_size": config.target.vocab_size, "num_heads": config.num_steps,
        "num_hidden_layers": config.block_depth, "truncated_vocab_size": config.draft_vocab_size,
        "medusa_fc_bias": config.fc_bias, "original_lm_head": not config.owns_head, KEY: own_block(record),
    }  # fmt: skip
    tensors = dict(record.tensors)
    if record.draft_ids is not None:
        tensors[_MAP] = record.draft_ids.astype(np.int64)
    if tables is not None and not config.owns_head:
        tensors["lm_heads.0.weight"] = tables.head_rows(record.draft_ids)
    return values, tensors


def _draft_ids(files: HeadFiles, config: HeadConfig) -> np.ndarray | None:
    size, vocab_size = config.draft_vocab_size, config.target.vocab_size
    ids = next((files.tensors[name] for name in (_MAP, f"medusa_heads.{_MAP}") if name in files.tensors), None)
    field = f"{files.path}: {_MAP}"
    if ids is None and size != vocab_size:
        raise InvalidParameter(field, f"is missing, though truncated_vocab_size={size}", "get the complete file")
    if ids is None or size == vocab_size:
        return None
    if ids.shape != (size,):
        raise InvalidParameter(field, f"has {ids.size} entries, the config says {size}", "get both files again")
    return checked_ids(ids, vocab_size, field)


LAYOUT = Layout(NAME, "Medusa as older vLLM reads it", matches, read, write, ("medusa",))
