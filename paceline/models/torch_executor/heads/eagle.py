"""EAGLE-1, EAGLE-2 and HASS (Li et al. 2024): the target's last hidden state, one token ahead.

    x = fc([embedding of the token at p + 1, hidden state at p]);  then decoder layers, the first without input norm
    logits = the target's head times the output, which is also the input state of child rows

Trained by `training/heads/recipes/eagle.py`; EAGLE-3 reaches a higher acceptance length with the same text.
"""

import torch
from torch import Tensor, nn

from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.blocks import DecoderLayer, SharesTables, linear


class Eagle(SharesTables):
    """The network; arguments as `SharesTables`."""

    def __init__(self, config: HeadConfig, embedding: Tensor, head: Tensor) -> None:
        super().__init__(config, embedding, head)
        layer = config.layer
        assert layer is not None
        self.fc = linear(2 * layer.hidden_size, layer.hidden_size, config.fc_bias)
        self.layers = nn.ModuleList(DecoderLayer(layer, input_norm=i > 0) for i in range(config.num_layers))

    @property
    def layer(self) -> DecoderLayer:
        """The first layer."""
        found = self.layers[0]
        assert isinstance(found, DecoderLayer)
        return found

    def project(self, taps: Tensor) -> Tensor:
        """Input states [n, hidden]: the only tap, unchanged."""
        return taps[:, 0].float()

    def enter(self, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See `Eagle3.enter`."""
        x = self.fc(torch.cat([self.embed(tokens), hidden], dim=-1))
        return self.layer.enter(x)

    def finish(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """See `Eagle3.finish`."""
        return y, y
