"""`make_net`: a head's network on the executor that runs its target."""

from importlib import import_module
from typing import Any

from paceline.errors import UnsupportedModel
from paceline.models.base import RunsHeads
from paceline.models.heads.record import HeadRecord
from paceline.models.loaded import LoadedModel


def make_net(record: HeadRecord, target: LoadedModel, dtype: str | None = "auto") -> Any:
    """An `AutoregressiveNet`, `BlockNet` or `StepNet` beside `target`.

    Args:
        dtype: how its weights are stored; ``auto`` as the target's, None as its drafts are quickest.

    Raises:
        UnsupportedModel: the target's executor runs no heads, or not this family.
        InvalidParameter: an unknown dtype.
    """
    model = target.model
    if not isinstance(model, RunsHeads):
        problem = f"executor: {type(model).__name__} runs no draft heads"
        raise UnsupportedModel(f"{problem}; run the target in one process, or draft with suffix or ngram")
    builder = import_module(model.head_builder)
    return builder.make_net(record, target, builder.draft_dtype(record) if dtype is None else dtype)
