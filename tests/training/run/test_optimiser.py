"""Parts of a network may learn faster than others, and a run goes on with their rates."""

import torch
from torch import nn

from paceline.training.run.optimiser import Optimiser


class Pair(nn.Module):
    """Two parts of one shape and one beginning."""

    def __init__(self):
        super().__init__()
        self.slow, self.fast = nn.Linear(4, 4), nn.Linear(4, 4)
        self.fast.load_state_dict(self.slow.state_dict())


def updated(net, optimiser):
    for _ in range(3):
        (net.slow(torch.eye(4)).square().sum() + net.fast(torch.eye(4)).square().sum()).backward()
        optimiser.step(1e-3)


def test_a_part_takes_its_factor_of_the_rate():
    net, begun = Pair(), Pair()
    begun.load_state_dict(net.state_dict())
    (net.slow(torch.eye(4)).square().sum() + net.fast(torch.eye(4)).square().sum()).backward()
    Optimiser(net, {"fast.": 4.0}).step(1e-3)
    for name in ("weight", "bias"):
        start = getattr(begun.slow, name)
        slow, fast = (getattr(part, name).detach() - start for part in (net.slow, net.fast))
        torch.testing.assert_close(fast, 4 * slow)
        assert slow.abs().max() > 0


def test_a_run_goes_on_with_its_rates():
    whole, parted = Pair(), Pair()
    parted.load_state_dict(whole.state_dict())
    one = Optimiser(whole, {"fast.": 4.0})
    updated(whole, one)
    updated(whole, one)
    first = Optimiser(parted, {"fast.": 4.0})
    updated(parted, first)
    second = Optimiser(parted, {"fast.": 4.0})
    second.restore(first.state())
    updated(parted, second)
    for mine, other in zip(whole.parameters(), parted.parameters(), strict=True):
        assert torch.equal(mine, other)
