"""A multi-token prediction layer inside its target's files: ``mtp.`` (Qwen's names) or ``mtp_layers.0.`` (MiMo's).

Only that part is read, with the layer sizes of the target's config. Embedding and head are the target's. A model that
runs here runs its own layer itself, whatever its form (`models/heads/prediction.py`).
"""

from typing import Any

import numpy as np

from paceline.errors import UnsupportedModel
from paceline.models.architecture.config import SUPPORTED_MODEL_TYPES
from paceline.models.base import NORMED
from paceline.models.heads.layer_config import layer_values, read_layer
from paceline.models.heads.layouts.base import HeadFiles, Layout, Parts, Reading, TargetTables, assemble
from paceline.models.heads.own_block import KEY, own_block, read_own_block
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.heads.shapes import layer_of
from paceline.models.heads.strict import Settings

NAME = "mtp"
_STEPS = 3
_QWEN = {
    "mtp.fc.": "fc.", "mtp.pre_fc_norm_hidden.": "hidden_norm.", "mtp.pre_fc_norm_embedding.": "embed_norm.",
    "mtp.layers.": "layers.", "mtp.norm.": "norm.",
}  # fmt: skip
_MIMO = {
    "model.mtp_layers.0.input_proj.": "fc.", "model.mtp_layers.0.hidden_layernorm.": "hidden_norm.",
    "model.mtp_layers.0.token_layernorm.": "embed_norm.", "model.mtp_layers.0.final_layernorm.": "norm.",
    "model.mtp_layers.0.": "layers.0.",
}  # fmt: skip
_STATE_FIRST = "model.mtp_layers.0.input_proj.weight"
"""MiMo's projection, which reads the hidden state before the embedding."""
PREFIXES = ("mtp.", "model.mtp_layers.")


def matches(files: HeadFiles) -> bool:
    """Whether a tensor belongs to an MTP layer."""
    return any(name.startswith(PREFIXES) for name in files.tensors)


def read(files: HeadFiles, reading: Reading) -> HeadRecord:
    """The head in `files`; see `Layout.read`."""
    settings = Settings(files.values, files.path)
    own = read_own_block(settings)
    if _runs_here(files):
        problem = "is a model with a layer for multi-token prediction"
        raise UnsupportedModel(f"{files.path}: {problem}; run it with --draft mtp, which drafts with that layer")
    layer = read_layer(settings)
    depth = settings.take("mtp_num_hidden_layers", settings.take("num_nextn_predict_layers", 1))
    if depth != 1:
        raise settings.wrong("num_nextn_predict_layers", f"{depth} layers", "use a model with one MTP layer")
    settings.skip("model_type")
    target = own.target or reading.print_of(
        files.path, hidden_size=layer.hidden_size, vocab_size=layer.vocab_size, num_layers=layer.num_hidden_layers
    )
    config = HeadConfig(
        family="mtp", target=target, taps=(NORMED,), layer=layer, num_layers=1, num_steps=_STEPS,
        draft_vocab_size=layer.vocab_size, norm_output=True, fc_bias="mtp.fc.bias" in files.tensors,
        max_positions=own.max_positions or layer.max_position_embeddings,
    )  # fmt: skip
    mine = {name: array for name, array in files.tensors.items() if name.startswith(PREFIXES)}
    if _STATE_FIRST in mine:
        mine[_STATE_FIRST] = np.roll(mine[_STATE_FIRST], layer.hidden_size, axis=-1)
    part = HeadFiles(files.path, files.values, mine)
    return assemble(part, Parts(config, None, own.card, settings.finish()), _renamed)


def write(record: HeadRecord, tables: TargetTables | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and tensors of `record` in Qwen's names; see `Layout.write`."""
    config = record.config
    layers = config.target.num_hidden_layers or 1
    values = layer_values(layer_of(config), layers) | {"num_nextn_predict_layers": 1, KEY: own_block(record)}
    back = {ours: theirs for theirs, ours in _QWEN.items()}
    return values, {_moved(name, back): array for name, array in record.tensors.items()}


def _runs_here(files: HeadFiles) -> bool:
    """Whether the files are those of a model that runs here, with all its layers."""
    inner = files.values.get("text_config", files.values)
    if "mtp.fc.weight" not in files.tensors or inner.get("model_type") not in SUPPORTED_MODEL_TYPES:
        return False
    return any(".layers.0." in name for name in files.tensors if not name.startswith(PREFIXES))


def _renamed(name: str) -> str:
    return _moved(name, _QWEN | _MIMO)


def _moved(name: str, table: dict[str, str]) -> str:
    return next((new + name.removeprefix(old) for old, new in table.items() if name.startswith(old)), name)


LAYOUT = Layout(NAME, "MTP layers inside a target's files", matches, read, write, ("mtp",))
