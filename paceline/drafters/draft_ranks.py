"""On how many ranks a draft model runs: on one, or shared by as many as its target.

The target's rank 0 drafts and decides; a draft that is shared has ranks of its own on the same devices, which see rows
and nothing else, as the target's do. What is drawn is keyed by seed, position and node wherever it is drawn, so a text
is the same either way as far as logits are. Not for the processes (`models/torch_executor/parallel/`).
"""

from collections.abc import Callable
from typing import Literal

from paceline.errors import InvalidParameter
from paceline.models.base import CausalLM, RunsOnRanks
from paceline.models.config import ModelConfig
from paceline.models.size import num_parameters, stored_bytes
from paceline.speculation.records import PRIOR_RATE
from paceline.theory.distributed_draft import Chip, DraftPlan, ModelSize, draft_plan

DraftRanks = int | Literal["auto"]


def ranks_of_draft(target: CausalLM, dtype: str, asked: DraftRanks) -> Callable[[ModelConfig], int]:
    """From a draft's sizes to its tensor-parallel size: `asked`, or for ``auto`` the faster of 1 and the target's.

    Args:
        dtype: of the weights of both.

    Raises:
        InvalidParameter: `asked` is neither ``auto`` nor 1 or more.
    """
    if asked != "auto" and not (isinstance(asked, int) and asked >= 1):
        raise InvalidParameter("draft_tensor_parallel_size", f"{asked!r} is no number of ranks", "use 1, or auto")

    def chosen(draft: ModelConfig) -> int:
        if asked != "auto":
            return asked
        if not isinstance(target, RunsOnRanks) or target.tensor_parallel_size == 1 or not target.can_share(draft):
            return 1
        plans = plans_of(draft, target.config, dtype, target.chip(), target.tensor_parallel_size)
        return max(plans, key=lambda plan: plan.speedup).tensor_parallel_size

    return chosen


def plans_of(draft: ModelConfig, target: ModelConfig, dtype: str, chip: Chip, ranks: int) -> list[DraftPlan]:
    """The draft on one rank and on all `ranks` of its target, by `theory.distributed_draft`.

    At the acceptance rate that nobody has measured yet; which of the two is faster does not hang on it.
    """
    small, large = _size(draft, dtype), _size(target, dtype)
    return [draft_plan(small, large, chip, own, ranks, PRIOR_RATE) for own in (1, ranks)]


def _size(config: ModelConfig, dtype: str) -> ModelSize:
    count = num_parameters(config)
    return ModelSize(count, config.num_hidden_layers, stored_bytes(config, dtype) / count)
