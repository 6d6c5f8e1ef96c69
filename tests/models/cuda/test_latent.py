"""Latent attention on the GPU's executor, in Triton's interpreter: the reference's logits, rows alone as together."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from paceline.models.cuda_executor import CudaModel
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor import TorchModel
from tests.fakes import RandomCheckpoint, latent_config

from .batches import tokens_of

CHECKPOINT = RandomCheckpoint(latent_config(num_hidden_layers=2))


@pytest.mark.parametrize("deterministic", [False, True])
def test_passes_are_the_references_and_can_be_recorded(deterministic):
    model = CudaModel(CHECKPOINT, "cpu", "float32", attention="triton", deterministic=deterministic)
    theirs = TorchModel(CHECKPOINT)
    assert model.passes.records
    cache, other = model.new_cache(4), theirs.new_cache(4)
    for first, tokens in ((0, tokens_of(20)), (20, [7]), (21, [9]), (22, tokens_of(3, 1))):
        rows = build_rows([Part((2, 0), first, tokens)])
        found, want = model.forward(rows, cache).logits, theirs.forward(rows, other).logits
        np.testing.assert_allclose(found, want, atol=5e-4, rtol=0)


def test_a_deterministic_row_is_the_same_alone_and_in_company():
    model = CudaModel(CHECKPOINT, "cpu", "float32", attention="triton", deterministic=True)
    tokens = tokens_of(12)
    whole = model.forward(build_rows([Part((2, 0), 0, tokens)]), model.new_cache(4)).logits.copy()
    cache = model.new_cache(4)
    alone = [
        model.forward(build_rows([Part((2, 0), at, [token])]), cache).logits[0].copy()
        for at, token in enumerate(tokens)
    ]
    np.testing.assert_allclose(np.stack(alone), whole, atol=1e-5)
