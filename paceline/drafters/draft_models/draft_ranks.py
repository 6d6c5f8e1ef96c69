"""The tensor-parallel size of a draft model: 1, or that of its target.

The target's rank 0 drafts and decides. A parallel draft has its own rank processes on the same devices, which compute
rows only, like the target's. Draws are keyed by seed, position and node, so the output is the same either way as far as
the logits are. Not for the processes (`models/torch_executor/parallel/`).
"""

from collections.abc import Callable
from typing import Literal

from paceline.errors import InvalidParameter
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.size import num_parameters, stored_bytes
from paceline.models.base import CausalLM, RunsOnRanks
from paceline.speculation.records import PRIOR_RATE
from paceline.theory.distributed_draft import Chip, DraftPlan, ModelSize, draft_plan

DraftRanks = int | Literal["auto"]


def ranks_of_draft(target: CausalLM, dtype: str, asked: DraftRanks) -> Callable[[ModelConfig], int]:
    """A function from a draft's configuration to its tensor-parallel size.

    Args:
        dtype: of the weights of both models.
        asked: the size; ``auto`` is the faster of 1 and the target's.

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
    """Plans for the draft on one rank and on all `ranks` of its target, by `theory.distributed_draft`.

    They assume the prior acceptance rate; which of the two is faster does not depend on it.
    """
    small, large = _size(draft, dtype), _size(target, dtype)
    return [draft_plan(small, large, chip, own, ranks, PRIOR_RATE) for own in (1, ranks)]


def _size(config: ModelConfig, dtype: str) -> ModelSize:
    count = num_parameters(config)
    return ModelSize(count, config.num_hidden_layers, stored_bytes(config, dtype) / count)
