"""Blockwise parallel decoding (Stern et al. 2018, section 6): a feed-forward per drafted position.

    logits_k = rows of the target's head times (h + down_k(relu(up_k(h))))

`down` starts at zero, so that every head starts as the target's own.
"""

from torch import Tensor, nn
from torch.nn import functional

from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.blocks import linear
from paceline.models.torch_executor.heads.medusa import StateOnly


class BlockwiseHead(nn.Module):
    """The feed-forward of one drafted position."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = linear(width, inner, bias=True), linear(inner, width, bias=True)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.relu(self.up(x)))


class Blockwise(StateOnly):
    """The network; arguments as `SharesTables`."""

    def __init__(self, config: HeadConfig, embedding: Tensor, head: Tensor) -> None:
        super().__init__(config, head)
        width = config.target.hidden_size
        self.blocks = nn.ModuleList(BlockwiseHead(width, config.inner_size) for _ in range(config.num_steps))
