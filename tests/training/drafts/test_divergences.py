"""Divergences of two laws: closed forms, and gradients that equal those of the formulas."""

import numpy as np
import pytest
import torch

from paceline.errors import InvalidParameter
from paceline.training.drafts.divergences import BETA, DIVERGENCES, criterion_of
from paceline.training.heads.losses import Read, fused_loss

P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])


def kl(p, q):
    return (p * (p / q).log()).sum(-1)


def mixed(p, q):
    return BETA * p + (1 - BETA) * q


FORMULAS = {
    "forward_kl": kl,
    "reverse_kl": lambda p, q: kl(q, p),
    "jsd": lambda p, q: BETA * kl(p, mixed(p, q)) + (1 - BETA) * kl(q, mixed(p, q)),
    "tvd": lambda p, q: 0.5 * (p - q).abs().sum(-1),
}


@pytest.mark.parametrize(
    ("name", "value"), [("forward_kl", 0.274887), ("reverse_kl", 0.274887), ("jsd", 0.066414), ("tvd", 0.3)]
)
def test_closed_forms(name, value):
    loss, acceptance, _ = criterion_of(name)(torch.from_numpy(np.log(Q))[None], torch.from_numpy(P)[None])
    assert float(loss) == pytest.approx(value, abs=1e-6) and float(acceptance) == pytest.approx(0.7)


def laws():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(9, 13, generator=generator, dtype=torch.float64).requires_grad_()
    return logits, torch.randn(9, 13, generator=generator, dtype=torch.float64).softmax(-1)


@pytest.mark.parametrize("name", list(FORMULAS))
def test_gradients_are_those_of_the_formulas(name):
    logits, p = laws()
    expected = FORMULAS[name](p, logits.softmax(-1))
    expected.sum().backward()
    loss, _, gradient = criterion_of(name)(logits.detach(), p)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(gradient, logits.grad)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_loss_over_many_rows_is_the_mean_of_the_formula(name):
    """As training computes it, some rows at a time and compiled where it can be."""
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(40, 6, generator=generator).requires_grad_()
    rows, teacher = torch.randn(23, 6, generator=generator), torch.randn(40, 6, generator=generator)
    found = fused_loss(Read(hidden), teacher, rows, torch.full((40,), 1 / 40), criterion_of(name)).loss
    found.backward()
    p, logits = (teacher @ rows.T).softmax(-1), (hidden.detach() @ rows.T).requires_grad_()
    expected, _, gradient = criterion_of(name)(logits.detach(), p)
    torch.testing.assert_close(found.detach(), expected.mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(hidden.grad, gradient @ rows / 40, rtol=1e-3, atol=1e-6)


def test_tvd_plus_is_a_policy_gradient():
    """-E over x ~ q of A(x) log q(x), A = (r - mean) / deviation, r = 1 where q < p (Goel et al. 2024, section 3.2)."""
    logits, p = laws()
    q = logits.softmax(-1).detach()
    reward = (q < p).double()
    mean = (q * reward).sum(-1, keepdim=True)
    advantage = (reward - mean) / ((q * (reward - mean) ** 2).sum(-1, keepdim=True)).sqrt()
    (-(q * advantage * logits.log_softmax(-1)).sum()).backward()
    _, _, gradient = criterion_of("tvd++")(logits.detach(), p)
    torch.testing.assert_close(gradient, logits.grad)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_equal_laws_are_left_alone_and_impossible_tokens_are_no_trouble(name):
    _, p = laws()
    loss, acceptance, gradient = criterion_of(name)(p.log(), p)
    torch.testing.assert_close(loss, torch.zeros(9, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(acceptance, torch.ones(9, dtype=torch.float64))
    if not name.startswith("tvd"):  # whose gradient jumps where the laws cross
        assert gradient.abs().max() < 1e-9
    one_hot = torch.eye(13, dtype=torch.float64)[:9]
    loss, _, gradient = criterion_of(name)(p.log(), one_hot)
    assert torch.isfinite(loss).all() and torch.isfinite(gradient).all()


def test_another_name_is_refused():
    with pytest.raises(InvalidParameter, match="choose one of: forward_kl"):
        criterion_of("wasserstein")
