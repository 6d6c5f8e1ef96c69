"""Medusa as its authors publish it: ``medusa_lm_head.pt`` with ``{head}.{block}.linear`` and ``{head}.{last}``.

Published configs have wrong numbers of heads, so the tensors decide. All blocks of a head share one set of weights. A
whole model with ``medusa_head.`` tensors inside is read, too. Not for vLLM's layout (`medusa_vllm.py`).
"""

import re
from typing import Any

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.base import NORMED
from paceline.models.heads.layouts.base import HeadFiles, Layout, Parts, Reading, Rename, TargetTables, assemble
from paceline.models.heads.own_block import KEY, own_block, read_own_block
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.heads.strict import Settings

NAME = "medusa"
_PREFIX = "medusa_head."
_NAME = re.compile(r"(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)")


def matches(files: HeadFiles) -> bool:
    """Whether tensors have names of the form ``{head}.{block}...``, as a ``ModuleList`` of ``Sequential`` is saved."""
    return any(_NAME.fullmatch(name.removeprefix(_PREFIX)) for name in files.tensors)


def read(files: HeadFiles, reading: Reading) -> HeadRecord:
    """The head in `files`; see `Layout.read`."""
    settings = Settings(files.values, files.path)
    own = read_own_block(settings)
    settings.skip("model_type", "medusa_num_layers", "hidden_size", "vocab_size")
    mine = {name.removeprefix(_PREFIX): array for name, array in files.tensors.items() if _is_head(name, files)}
    found = [match for name in mine if (match := _NAME.fullmatch(name))]
    heads = 1 + max(int(match[1]) for match in found)
    outputs = {int(match[1]): int(match[2]) for match in found if match[3] == "weight"}
    depth = outputs.get(0, 1 + max(int(match[2]) for match in found))
    rows, width = mine[f"0.{depth}.weight"].shape if outputs else (None, len(mine["0.0.linear.bias"]))
    said = settings.take("medusa_num_heads", heads)
    name = str(settings.take("base_model_name_or_path", ""))
    target = own.target or reading.print_of(files.path, name=name, hidden_size=width, vocab_size=rows)
    config = HeadConfig(
        family="medusa", target=target, taps=(NORMED,), num_steps=heads, draft_vocab_size=target.vocab_size,
        fc_bias=True, owns_head=bool(outputs), block_depth=depth,
    )  # fmt: skip
    notes = (() if said == heads else (f"medusa_num_heads says {said}, the file holds {heads}",)) + settings.finish()
    return assemble(HeadFiles(files.path, files.values, mine), Parts(config, None, own.card, notes), _renamed(depth))


def write(record: HeadRecord, tables: TargetTables | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and tensors of `record`; see `Layout.write`.

    Raises:
        InvalidParameter: it has a draft vocabulary or blocks without bias, which this layout does not support.
    """
    config = record.config
    if record.draft_ids is not None or not config.fc_bias:
        raise InvalidParameter("layout", f"{NAME} has whole vocabularies and biases only", "convert to medusa-vllm")
    values = {
        "medusa_num_heads": config.num_steps, "medusa_num_layers": config.block_depth,
        "base_model_name_or_path": config.target.name, KEY: own_block(record),
    }  # fmt: skip
    tensors = {_back(name, config.block_depth): array for name, array in record.tensors.items()}
    if tables is not None and not config.owns_head:
        tensors |= {f"{step}.{config.block_depth}.weight": tables.head for step in range(config.num_steps)}
    return values, tensors


def _is_head(name: str, files: HeadFiles) -> bool:
    """Whether `name` belongs to the head: in a whole model, only names with the prefix do."""
    return name.startswith(_PREFIX) or not any(other.startswith(_PREFIX) for other in files.tensors)


def _renamed(depth: int) -> Rename:
    def rename(name: str) -> str:
        match = _NAME.fullmatch(name)
        if match is None:
            return name
        head, place, kind = match.groups()
        if kind == "weight":
            return f"lm_heads.{head}.weight" if int(place) == depth else name
        return f"blocks.{head}.layers.{place}.{kind.removeprefix('linear.')}"

    return rename


def _back(name: str, depth: int) -> str:
    part, head, *rest = name.split(".")
    return f"{head}.{depth}.weight" if part == "lm_heads" else f"{head}.{rest[1]}.linear.{rest[2]}"


LAYOUT = Layout(NAME, "Medusa as its authors publish it", matches, read, write, ("medusa",))
