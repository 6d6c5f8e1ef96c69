"""docs/families.md lists every family, and each is compared with transformers from both kinds of files.

PACELINE_WRITE_TABLES=1 writes the page anew. The comparisons themselves are in `test_torch_executor.py` and
`test_numba_families.py`: logits of folders, and that GGUF files hold the same tensors and settings.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.models.architecture.families import FAMILIES
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor import TorchModel

from .converter import convert
from .test_torch_executor import FAMILIES as COMPARED
from .tiny import random_tokens

pytestmark = pytest.mark.usefixtures("own_weight_cache")
PAGE = Path(__file__).parents[2] / "docs" / "families.md"
TOKENS = random_tokens(30)
BEGIN, END = "<!-- made by tests/models/test_family_table.py -->", "<!-- end of what is made -->"


def test_every_family_is_compared_with_transformers():
    assert set(FAMILIES) <= {name.split("-")[0] for name in COMPARED}


@pytest.mark.parametrize("executor", [NumbaModel, TorchModel])
@pytest.mark.parametrize("name", ["gemma2-usual", "gemma3_text-usual", "starcoder2-usual"])
def test_what_gguf_files_do_not_say_is_what_published_models_have(name, executor, tiny_models, tmp_path):
    folder, theirs = tiny_models[name]
    with torch.no_grad():
        want = theirs(torch.tensor([TOKENS])).logits[0].numpy()
    model = executor(GGUFCheckpoint(convert(tmp_path / "model.gguf", folder)), dtype="float32")
    logits = model.forward(build_rows([Part((1, 0), 0, TOKENS)]), model.new_cache(2)).logits
    assert np.abs(logits - want).max() < 1e-4 * max(1.0, np.abs(want).max())


def test_the_page_lists_every_family():
    lines = [f"| `{name}` | {one.differs} | `{one.architecture}` |" for name, one in FAMILIES.items()]
    table = ["| `model_type` | what is different | GGUF's name |", "|---|---|---|", *lines]
    made = "\n".join([BEGIN, "", *table, "", END])
    page = PAGE.read_text()
    start, stop = page.index(BEGIN), page.index(END) + len(END)
    if os.environ.get("PACELINE_WRITE_TABLES"):
        PAGE.write_text(page[:start] + made + page[stop:])
    else:
        assert page[start:stop] == made
