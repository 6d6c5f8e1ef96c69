"""docs/families.md says what these tests find: every family from both kinds of files on both executors.

PACELINE_WRITE_TABLES=1 writes the page anew.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.models.architecture.families import FAMILIES
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor import TorchModel

from .converter import convert
from .tiny import random_tokens

pytestmark = pytest.mark.usefixtures("own_weight_cache")
PAGE = Path(__file__).parents[2] / "docs" / "families.md"
TOKENS = random_tokens(30)
BEGIN, END = "<!-- made by tests/models/test_family_table.py -->", "<!-- end of what is made -->"
EXECUTORS = {
    "CPU kernels": lambda checkpoint: NumbaModel(checkpoint, "float32", num_threads=1),
    "torch": lambda checkpoint: TorchModel(checkpoint),
}


def agrees(make, checkpoint, want) -> bool:
    model = make(checkpoint)
    logits = model.forward(build_rows([Part((1, 0), 0, TOKENS)]), model.new_cache(2)).logits
    return bool(np.abs(logits - want).max() < 1e-4 * max(1.0, np.abs(want).max()))


def row(name, folder, theirs, gguf_path) -> str:
    with torch.no_grad():
        want = theirs(torch.tensor([TOKENS])).logits[0].numpy()
    checkpoints = SafetensorsCheckpoint(folder), GGUFCheckpoint(convert(gguf_path, folder))
    cells = [
        "yes" if agrees(make, checkpoint, want) else "no" for make in EXECUTORS.values() for checkpoint in checkpoints
    ]
    family = FAMILIES[name]
    return f"| `{name}` | {family.differs} | `{family.architecture}` | {' | '.join(cells)} |"


def test_the_page_says_which_family_runs_where(tiny_models, tmp_path):
    kinds = [f"{executor}: {kind}" for executor in EXECUTORS for kind in ("folder", "GGUF")]
    table = [f"| `model_type` | what is different | GGUF's name | {' | '.join(kinds)} |", "|---" * 7 + "|"]
    for name in FAMILIES:
        folder, theirs = tiny_models[f"{name}-usual" if f"{name}-usual" in tiny_models else name]
        table.append(row(name, folder, theirs, tmp_path / f"{name}.gguf"))
    made = "\n".join([BEGIN, "", *table, "", END])
    page = PAGE.read_text()
    start, stop = page.index(BEGIN), page.index(END) + len(END)
    if os.environ.get("PACELINE_WRITE_TABLES"):
        PAGE.write_text(page[:start] + made + page[stop:])
    else:
        assert page[start:stop] == made
