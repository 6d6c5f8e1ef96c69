"""Arctic's LSTM speculators (ArcticInference, ``method: sum_lstm``).

Sizes in the config are lists, which must have one entry. The projections of the four gates are concatenated in the
order forget, input, output, cell. All steps share their weights, except for the first projection.
"""

import re
from typing import Any

import numpy as np

from paceline.models.base import NORMED
from paceline.models.heads.layouts.base import HeadFiles, Layout, Parts, Reading, TargetTables, assemble
from paceline.models.heads.own_block import KEY, own_block, read_own_block
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.heads.strict import Settings

NAME = "arctic-lstm"
_GATES = ("forget", "input", "output", "cell")
_PREFIX = "speculator."
_STEP = re.compile(r"(forget_emb|input_emb|output_emb|cell_emb|cell_ln|state_ln|head)\.\d+\.(weight|bias)")


def matches(files: HeadFiles) -> bool:
    """Whether ``method`` is ``sum_lstm``, or there is a projection per gate."""
    return files.values.get("method") == "sum_lstm" or any("forget_proj." in name for name in files.tensors)


def read(files: HeadFiles, reading: Reading) -> HeadRecord:
    """The head in `files`; see `Layout.read`."""
    settings = Settings(files.values, files.path)
    own = read_own_block(settings)
    settings.skip("model_type", "method", "top_k_tokens_per_head", "n_candidates", "num_lookahead_tokens")
    inner = {_one(settings, name) for name in ("inner_dim", "emb_dim", "proj_dim")}
    if len(inner) != 1:
        raise settings.wrong("inner_dim", "emb_dim and proj_dim differ", "use a speculator of one width")
    if not settings.flag("tie_weights", True):
        raise settings.wrong("tie_weights", "is false", "use a speculator whose steps share their weights")
    width, vocab_size = settings.count("input_hidden_dim"), settings.count("vocab_size")
    target = own.target or reading.print_of(files.path, hidden_size=width, vocab_size=vocab_size)
    config = HeadConfig(
        family="lstm_speculator", target=target, taps=(NORMED,), num_steps=settings.count("n_predict"),
        draft_vocab_size=vocab_size, owns_embedding=True, owns_head=True, inner_size=inner.pop(),
        tied=settings.flag("tie_lstm_embs", False), scale_input=settings.flag("scale_input", False),
    )  # fmt: skip
    whole = HeadFiles(files.path, files.values, _joined(files.tensors))
    unused = tuple(f"{gate}_emb." for gate in _GATES[1:]) if config.tied else ()
    return assemble(whole, Parts(config, None, own.card, settings.finish()), _renamed, unused)


def write(record: HeadRecord, tables: TargetTables | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and tensors of `record`; see `Layout.write`."""
    config = record.config
    values = {
        "architectures": ["ArcticLSTMSpeculatorPreTrainedModel"], "model_type": "mlp_speculator", "method": "sum_lstm",
        "vocab_size": config.target.vocab_size, "input_hidden_dim": config.target.hidden_size,
        "inner_dim": [config.inner_size], "emb_dim": [config.inner_size], "proj_dim": [config.inner_size],
        "n_predict": config.num_steps, "tie_weights": True, "tie_lstm_embs": config.tied,
        "scale_input": config.scale_input, KEY: own_block(record),
    }  # fmt: skip
    tensors: dict[str, np.ndarray] = {}
    for name, array in record.tensors.items():
        if not name.startswith("projs."):
            part, kind = name.split(".")
            tensors[f"{_PREFIX}{part}.0.{kind}"] = array
            continue
        step = name.split(".")[1]
        for gate, piece in zip(_GATES, np.split(array, len(_GATES)), strict=True):
            tensors[f"{_PREFIX}{gate}_proj.{step}.weight"] = piece
    return values, tensors


def _one(settings: Settings, name: str) -> int:
    """The only entry of a list, which may be written as a number or as text."""
    value = settings.take(name)
    entries = value.split(".") if isinstance(value, str) else value if isinstance(value, list) else [value]
    sizes = [int(one) for one in map(str, entries) if one.isdecimal() and int(one)]
    if len(sizes) != len(entries):
        raise settings.wrong(name, f"{value!r} is no size of layers", "correct the config")
    if len(sizes) != 1:
        raise settings.wrong(name, f"{value!r} is not one layer", "use a speculator of one layer per step")
    return sizes[0]


def _joined(tensors: Any) -> dict[str, np.ndarray]:
    """`tensors` with the projections of the four gates concatenated, without the file's prefix."""
    names = {name.removeprefix(_PREFIX): array for name, array in tensors.items()}
    for step in range(2):
        pieces = [names.pop(f"{gate}_proj.{step}.weight", None) for gate in _GATES]
        if all(piece is not None for piece in pieces):
            names[f"projs.{step}.weight"] = np.concatenate([piece for piece in pieces if piece is not None])
    return names


def _renamed(name: str) -> str:
    match = _STEP.fullmatch(name)
    return f"{match[1]}.{match[2]}" if match else name


LAYOUT = Layout(NAME, "LSTM speculators of Arctic Inference", matches, read, write, ("lstm_speculator",))
