"""P-EAGLE (arXiv 2602.01469): EAGLE-3's network over masks, so that all levels of a chain take one causal pass.

    row 0 of a chain: the last committed token and its place's g = fc(taps), as in EAGLE-3
    every further row: the mask token and g = fc(mask_hidden), one learnt vector for all places
    each row attends to the text's rows and to the earlier rows of its chain; logits = head(norm(y))

The first layer is EAGLE-3's, further ones are plain decoder layers. The caller computes attention: `nets.py` when
serving, `training/heads/recipes/p_eagle.py` when training.
"""

import torch
from torch import Tensor, nn

from paceline.errors import InvalidParameter
from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.eagle3 import Eagle3


class PEagle(Eagle3):
    """The network; arguments as `SharesTables`.

    Raises:
        InvalidParameter: the head names no mask token.
    """

    def __init__(self, config: HeadConfig, embedding: Tensor, head: Tensor) -> None:
        super().__init__(config, embedding, head)
        if config.mask_token_id is None:
            raise InvalidParameter("mask_token_id", "is missing from a p_eagle head", "get its complete config")
        self.mask_token = config.mask_token_id
        self.mask_hidden = nn.Parameter(torch.randn(len(config.taps) * config.target.hidden_size))

    def mask_state(self) -> Tensor:
        """Input state [hidden] of a mask row."""
        return self.project(self.mask_hidden.view(1, len(self.config.taps), -1))[0]

    def enter_masks(self, count: int) -> tuple[Tensor, Tensor]:
        """As `enter`, for `count` mask rows."""
        tokens = torch.full((1,), self.mask_token, device=self.mask_hidden.device)
        x, residual = self.enter(tokens, self.mask_state()[None])
        return x.expand(count, -1), residual.expand(count, -1)
