"""`make_net`: a head's network on the executor that runs its target."""

from importlib import import_module
from typing import Any

from paceline.errors import UnsupportedModel
from paceline.models.base import RunsHeads
from paceline.models.heads.record import HeadRecord
from paceline.models.loaded import LoadedModel


def make_net(record: HeadRecord, target: LoadedModel, dtype: str | None = "auto") -> Any:
    """The network of a head: one of the interfaces of `nets.py`, on the executor of `target`.

    Args:
        dtype: storage of its weights; ``auto`` for the target's, None for the fastest.

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
