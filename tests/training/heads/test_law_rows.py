"""The compiled loop of the law's losses against the torch formulas, over rows as wide as a draft vocabulary's."""

import numpy as np
import pytest
import torch

from paceline.training.heads.law_rows import compiled_grade
from paceline.training.heads.losses import row_gradients

PLACES, TOKENS = 9, 1003


def graded(logits, target, weights, eta):
    losses, entropies, acceptance = (torch.empty(PLACES) for _ in range(3))
    gradient, overwritten, hits = logits.clone(), target.clone(), torch.empty(PLACES, dtype=torch.bool)
    arrays = (gradient, overwritten, weights, losses, entropies, acceptance, hits)
    first, rest = [one.numpy() for one in arrays[:3]], [one.numpy() for one in arrays[3:]]
    compiled_grade()(*first, np.float32(-1.0 if eta is None else eta), *rest)
    return losses, entropies, acceptance, hits, gradient


@pytest.mark.parametrize("eta", [None, 3.0])
@pytest.mark.parametrize("scale", [0.1, 4.0, 60.0])
def test_it_is_the_formula(eta, scale):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(PLACES, TOKENS, generator=generator) * scale
    target = torch.randn(PLACES, TOKENS, generator=generator) * scale + logits / 2
    weights = torch.rand(PLACES, generator=generator)
    losses, entropies, acceptance, hits, gradient = graded(logits, target, weights, eta)
    expected = row_gradients(logits, target.softmax(-1), eta)
    torch.testing.assert_close(losses, expected[0], rtol=1e-5, atol=1e-4)
    law = target.double().softmax(-1)
    torch.testing.assert_close(entropies, torch.special.entr(law).sum(-1).float(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(acceptance, expected[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, expected[2] * weights[:, None], rtol=1e-4, atol=1e-6)
    assert hits.tolist() == (logits.argmax(-1) == target.argmax(-1)).tolist()


def test_what_is_no_number_ends_as_it_does_in_torch():
    logits, weights = torch.full((PLACES, TOKENS), torch.nan), torch.ones(PLACES)
    losses, *_ = graded(logits, logits, weights, None)
    assert losses.isnan().all()
