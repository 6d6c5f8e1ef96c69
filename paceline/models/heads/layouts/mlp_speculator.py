"""MLP speculators of IBM's fms-fsdp (Wertheimer et al. 2024, arXiv 2404.19124); Arctic Inference and old vLLM run them.

Paceline's MLP speculators are saved in this layout. The target's embeddings or head rows that they share are left out,
unless copies are requested for programs that cannot share them. The draft vocabulary (``d2t``) is Paceline's addition.
"""

import re
from typing import Any

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.base import NORMED
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
from paceline.models.heads.own_block import KEY, own_block, read_own_block
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.heads.strict import Settings

NAME = "mlp-speculator"
_PREFIX = "speculator."
_STEP = re.compile(r"(emb|proj|head|ln)\.(\d+)\.(weight|bias)")


def matches(files: HeadFiles) -> bool:
    """Whether ``model_type`` is ``mlp_speculator``, and it is not Arctic's LSTM under the same name."""
    return files.values.get("model_type") == "mlp_speculator" and files.values.get("method") != "sum_lstm"


def read(files: HeadFiles, reading: Reading) -> HeadRecord:
    """The head in `files`; see `Layout.read`."""
    settings = Settings(files.values, files.path)
    settings.skip("model_type", "top_k_tokens_per_head", "n_candidates", "num_lookahead_tokens", "method")
    own = read_own_block(settings)
    width, vocab_size = settings.count("emb_dim"), settings.count("vocab_size")
    target = own.target or reading.print_of(files.path, hidden_size=width, vocab_size=vocab_size)
    config = HeadConfig(
        family="mlp_speculator", target=target, taps=(NORMED,), num_steps=settings.count("n_predict"),
        draft_vocab_size=settings.count("draft_vocab_size", vocab_size), owns_embedding=own.owns_embedding,
        owns_head=own.owns_head, inner_size=settings.count("inner_dim", 0, 0) or width,
        embedding_scale=own.embedding_scale, tied=settings.flag("tie_weights", False),
        scale_input=settings.flag("scale_input", False),
    )  # fmt: skip
    ids = read_draft_ids(files, own, config.draft_vocab_size, vocab_size)
    copies = (("emb.",) if not own.owns_embedding else ()) + (("head.",) if not own.owns_head else ())
    ignored = (*copies, *(_PREFIX + name for name in copies))
    return assemble(files, Parts(config, ids, own.card, settings.finish()), _names(config.tied), ignored)


def write(record: HeadRecord, tables: TargetTables | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and tensors of `record`; see `Layout.write`.

    Raises:
        InvalidParameter: `tables` are given for a head with its own output head over a draft vocabulary, which other
            programs do not support.
    """
    config = record.config
    values: dict[str, Any] = {
        "architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator",
        "vocab_size": config.target.vocab_size, "emb_dim": config.target.hidden_size, "inner_dim": config.inner_size,
        "n_predict": config.num_steps, "top_k_tokens_per_head": [1] * config.num_steps, "n_candidates": 1,
        "tie_weights": config.tied, "scale_input": config.scale_input, KEY: own_block(record),
    }  # fmt: skip
    tensors = {_PREFIX + name: array for name, array in record.tensors.items()}
    tensors |= draft_id_tensors(record)
    if record.draft_ids is not None:
        values["draft_vocab_size"] = config.draft_vocab_size
    if tables is not None:
        tensors |= _copies(record, tables)
    return values, tensors


def _copies(record: HeadRecord, tables: TargetTables) -> dict[str, np.ndarray]:
    """The target's tables as tensors of each step: scaled, and multiplied by the projections that read them."""
    config, copies = record.config, {}
    if config.owns_head and record.draft_ids is not None:
        raise InvalidParameter(
            "draft_vocab_size", f"{config.draft_vocab_size} has no place in the layout of MLP speculators elsewhere",
            "train the head with the whole vocabulary, or with the target's own head rows",
        )  # fmt: skip
    into, out = record.tensors.get("embed_proj.weight"), record.tensors.get("head_proj.weight")
    for step in range(1 if config.tied else config.num_steps):
        if not config.owns_embedding:
            scaled = tables.embedding * np.float32(config.embedding_scale)
            copies[f"{_PREFIX}emb.{step}.weight"] = scaled if into is None else scaled @ into.T
        if not config.owns_head:
            copies[f"{_PREFIX}head.{step}.weight"] = tables.head if out is None else tables.head @ out
    return copies


def _names(tied: bool) -> Rename:
    def rename(name: str) -> str:
        name = name.removeprefix(_PREFIX)
        match = _STEP.fullmatch(name)
        if not tied or match is None:
            return name
        part, step, kind = match.groups()
        return f"{part}.{min(int(step), 1 if part == 'proj' else 0)}.{kind}"

    return rename


LAYOUT = Layout(
    NAME,
    "MLP speculators of IBM's fms; Arctic Inference and older vLLM read it",
    matches,
    read,
    write,
    ("mlp_speculator",),
)
