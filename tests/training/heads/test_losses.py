"""The fused loss against the formulas written out, and its gradients against automatic ones."""

from functools import partial

import numpy as np
import pytest
import torch

from paceline.training.heads.losses import OutputHead, Read, law_loss

ROWS, WIDTH, VOCAB = 7, 5, 11


def written_out(hidden, teacher, rows, weights, eta):
    """-sum p log q, or lam * that + (1 - lam)(1 - a) with lam = exp(-eta a) held constant (2602.23881)."""
    p = torch.softmax(teacher @ rows.T, -1)
    q = torch.softmax(hidden @ rows.T, -1)
    loss = -(p * torch.log(q)).sum(-1)
    acceptance = torch.minimum(p, q).sum(-1)
    if eta is not None:
        share = torch.exp(-eta * acceptance.detach())
        loss = share * loss + (1 - share) * (1 - acceptance)
    return (loss * weights).sum(), acceptance


def numbers(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (ROWS, WIDTH), (ROWS, WIDTH), (VOCAB, WIDTH), (ROWS,)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).float() for shape in shapes]


@pytest.mark.parametrize("eta", [None, 3.0])
def test_fused_loss_is_the_formula(eta):
    hidden, teacher, rows, weights = numbers()
    plain, fused = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    expected, acceptance = written_out(plain, teacher, rows, weights, eta)
    found = law_loss(Read(fused), teacher, rows, weights, eta)
    expected.backward()
    found.loss.backward()
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(found.acceptance, acceptance)
    torch.testing.assert_close(fused.grad, plain.grad)


@pytest.mark.parametrize("head", [OutputHead, partial(OutputHead, scale=0.25), partial(OutputHead, softcap=3.0),
                                  partial(OutputHead, scale=2.0, softcap=3.0)])  # fmt: skip
def test_the_targets_law_has_its_factor_and_its_cap_and_the_heads_has_neither(head):
    hidden, teacher, rows, weights = numbers()
    logits, made = teacher @ rows.T, head(rows)
    expected = logits * made.scale
    expected = made.softcap * torch.tanh(expected / made.softcap) if made.softcap else expected
    torch.testing.assert_close(made.logits(teacher), expected)
    p, q = expected.softmax(-1), (hidden @ rows.T).softmax(-1)
    found = law_loss(Read(hidden), teacher, rows, weights, None, made)
    torch.testing.assert_close(found.loss, (-(p * q.log()).sum(-1) * weights).sum())
    torch.testing.assert_close(found.acceptance, torch.minimum(p, q).sum(-1))


def test_trained_rows_get_their_gradient():
    hidden, teacher, rows, weights = numbers()
    inputs, added = torch.randn(ROWS, 3), torch.randn(VOCAB, 3)
    leaves = [[one.clone().requires_grad_() for one in (hidden, inputs, added)] for _ in range(2)]
    h, i, a = leaves[0]
    p = torch.softmax(teacher @ rows.T, -1)
    expected = (-(p * torch.log_softmax(h @ rows.T + i @ a.T, -1)).sum(-1) * weights).sum()
    expected.backward()
    law_loss(Read(leaves[1][0], (leaves[1][1], leaves[1][2])), teacher, rows, weights).loss.backward()
    for one, other in zip(*leaves, strict=True):
        torch.testing.assert_close(other.grad, one.grad)


def test_many_rows_are_the_sum_of_few(monkeypatch):
    hidden, teacher, rows, weights = numbers()
    whole = law_loss(Read(hidden), teacher, rows, weights)
    monkeypatch.setattr("paceline.training.heads.losses.CHUNK", 2)
    pieces = law_loss(Read(hidden), teacher, rows, weights)
    torch.testing.assert_close(pieces.loss, whole.loss)
    np.testing.assert_array_equal(pieces.hits.numpy(), whole.hits.numpy())


def test_the_same_law_is_accepted_always():
    _, teacher, rows, weights = numbers()
    found = law_loss(Read(teacher), teacher, rows, weights)
    torch.testing.assert_close(found.acceptance, torch.ones(ROWS))
    assert found.hits.all()
