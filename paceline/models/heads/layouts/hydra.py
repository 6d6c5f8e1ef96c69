"""Hydra heads (zankner/Hydra): ``hydra_lm_head.pt`` of the forms ``mlp`` and ``prefix-mlp``, grounded.

Grounded means that head k reads k + 1 embeddings in addition to the hidden state. The prefix form has one decoder layer
before the heads and a dropout module before every part, which shifts the numbers in the names. Ungrounded and attention
forms are refused.
"""

import re
from typing import Any

import numpy as np

from paceline.errors import CorruptWeights
from paceline.models.base import NORMED
from paceline.models.heads.layer_config import layer_values, read_layer
from paceline.models.heads.layouts.base import HeadFiles, Layout, Parts, Reading, TargetTables, assemble
from paceline.models.heads.own_block import KEY, own_block, read_own_block
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.heads.shapes import layer_of
from paceline.models.heads.strict import Settings

NAME = "hydra"
_PREFIX = "prefix_embeding_layer."
"""The spelling in the files."""
_BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(linear|res_connection)\.(weight|bias)")
_HEAD = re.compile(r"hydra_lm_head\.(\d+)\.(?:1\.)?(weight|bias)")
_OWN_BLOCK = re.compile(r"blocks\.(\d+)\.(\d+)\.(linear|residual)\.(weight|bias)")


def matches(files: HeadFiles) -> bool:
    """Whether a tensor belongs to a Hydra head."""
    return any(name.startswith("hydra_mlp.") for name in files.tensors)


def read(files: HeadFiles, reading: Reading) -> HeadRecord:
    """The head in `files`; see `Layout.read`."""
    settings = Settings(files.values, files.path)
    own = read_own_block(settings)
    form = settings.take("hydra_head_arch", "mlp")
    if form not in ("mlp", "prefix-mlp"):
        raise settings.wrong("hydra_head_arch", f"{form!r} is not read", "use mlp or prefix-mlp")
    if not settings.flag("grounded_heads", False):
        raise settings.wrong("grounded_heads", "is false: such heads are Medusa's", "use grounded heads")
    if settings.take("hidden_state_offset", 0):
        raise settings.wrong("hidden_state_offset", "is not 0", "use heads that read the last hidden state")
    settings.skip("model_type")
    rows, width = _head_shape(files)
    target = own.target or reading.print_of(
        files.path, name=str(settings.take("base_model_name_or_path", "")), hidden_size=width, vocab_size=rows
    )
    settings.skip("base_model_name_or_path")
    prefix = form == "prefix-mlp"
    layer = read_layer(settings) if prefix else None
    config = HeadConfig(
        family="hydra", target=target, taps=(NORMED,), layer=layer, num_layers=int(prefix),
        num_steps=settings.count("hydra_num_heads", 4), draft_vocab_size=target.vocab_size, owns_head=True,
        fc_bias=True, block_depth=settings.count("hydra_num_layers", 1), variant=form,
        max_positions=layer.max_position_embeddings if layer else 0,
    )  # fmt: skip
    parts = Parts(config, None, own.card, settings.finish())
    return assemble(files, parts, lambda name: _renamed(name, prefix), (f"{_PREFIX}embed_tokens.",))


def write(record: HeadRecord, tables: TargetTables | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and tensors of `record`; see `Layout.write`."""
    config = record.config
    prefix = config.variant == "prefix-mlp"
    values: dict[str, Any] = layer_values(layer_of(config), 1) if prefix else {}
    values |= {
        "hydra_num_heads": config.num_steps, "hydra_num_layers": config.block_depth, "hydra_head_arch": config.variant,
        "grounded_heads": True, "base_model_name_or_path": config.target.name, KEY: own_block(record),
    }  # fmt: skip
    return values, {_back(name, prefix): array for name, array in record.tensors.items()}


def _head_shape(files: HeadFiles) -> tuple[int, int]:
    for name in ("hydra_lm_head.0.weight", "hydra_lm_head.0.1.weight"):
        if name in files.tensors:
            rows, width = files.tensors[name].shape
            return rows, width
    raise CorruptWeights(f"{files.path}: has no output head hydra_lm_head.0; get the file again")


def _renamed(name: str, prefix: bool) -> str:
    block, head = _BLOCK.fullmatch(name), _HEAD.fullmatch(name)
    if name.startswith(_PREFIX):
        return "prefix." + name.removeprefix(_PREFIX)
    if head:
        return f"lm_heads.{head[1]}.{head[2]}"
    if block:
        place = (int(block[2]) - 1) // 2 if prefix else int(block[2])
        return f"blocks.{block[1]}.{place}.{'linear' if block[3] == 'linear' else 'residual'}.{block[4]}"
    return name


def _back(name: str, prefix: bool) -> str:
    if name.startswith("prefix."):
        return _PREFIX + name.removeprefix("prefix.")
    block = _OWN_BLOCK.fullmatch(name)
    if block is None:
        _, head, kind = name.split(".")
        return f"hydra_lm_head.{head}.{'1.' if prefix else ''}{kind}"
    place = 2 * int(block[2]) + 1 if prefix else int(block[2])
    return f"hydra_mlp.{block[1]}.{place}.{'linear' if block[3] == 'linear' else 'res_connection'}.{block[4]}"


LAYOUT = Layout(NAME, "Hydra heads (mlp and prefix-mlp)", matches, read, write, ("hydra",))
