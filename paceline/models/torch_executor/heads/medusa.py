"""Medusa heads (Cai et al. 2024): head k predicts the token k + 2 positions ahead from the target's hidden state alone.

    x = x + silu(W x + b), once per block;  logits_k = rows of the target's head, or of its own, times x

Weights start at zero, so that every head starts as the target's own.
"""

from torch import Tensor, nn
from torch.nn import functional

from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.blocks import linear


class MedusaHead(nn.Module):
    """The residual blocks of one head."""

    def __init__(self, width: int, depth: int, bias: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linear(width, width, bias) for _ in range(depth))
        for layer in self.layers:
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + functional.silu(layer(x).float())
        return x


class StateOnly(nn.Module):
    """Heads that read only the target's hidden state, one block per drafted position.

    Args:
        config: of the head.
        head: [draft vocabulary, hidden] rows of the target's head.
    """

    blocks: nn.ModuleList
    head_rows: Tensor

    def __init__(self, config: HeadConfig, head: Tensor) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("head_rows", head, persistent=False)

    def width(self, level: int) -> int:
        """Width of the state, which is that of the target's hidden state at every level."""
        return self.config.target.hidden_size

    def begin(self, hidden: Tensor) -> Tensor:
        """Initial states [n, hidden]."""
        return hidden.float()

    def step(self, level: int, state: Tensor, tokens: Tensor) -> Tensor:
        """The next state, which is unchanged: these heads do not read `tokens`."""
        return state

    def read(self, level: int, hidden: Tensor) -> Tensor:
        """Input [n, hidden] of the output head of `level`, from hidden states [n, hidden]."""
        return self.blocks[level](hidden.float())

    def rows_of(self, level: int) -> Tensor:
        """Output head [draft vocabulary, hidden] of `level`."""
        return self.head_rows


class Medusa(StateOnly):
    """The network; arguments as `SharesTables`."""

    def __init__(self, config: HeadConfig, embedding: Tensor, head: Tensor) -> None:
        super().__init__(config, head)
        width = config.target.hidden_size
        self.blocks = nn.ModuleList(
            MedusaHead(width, config.block_depth, config.fc_bias) for _ in range(config.num_steps)
        )
        if config.owns_head:
            self.lm_heads = nn.ModuleList(linear(width, config.draft_vocab_size) for _ in range(config.num_steps))

    def rows_of(self, level: int) -> Tensor:
        """See `StateOnly.rows_of`."""
        return self.lm_heads[level].weight if self.config.owns_head else self.head_rows  # type: ignore[return-value]
