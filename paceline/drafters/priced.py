"""What a drafted token costs: by what a drafter says of itself, or by the bytes of the models it loads.

A price is a constant, not a measurement, so that what rests on it does not depend on the machine's mood. Not the place
for deciding who drafts or how much (`hybrid.py`, `scheduling/length/`).
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from paceline.drafters.base import Drafter
from paceline.drafters.registry import make_drafter
from paceline.drafters.services import DraftServices
from paceline.models.config import ModelConfig
from paceline.models.loaded import LoadedModel
from paceline.models.tensor_names import tensor_shapes

_BYTES = {"int8": 1, "w8a8": 1, "bfloat16": 2, "float16": 2, "float32": 4}
"""Of a stored weight."""


def make_priced(method: str, services: DraftServices, options: Mapping[str, Any]) -> tuple[Drafter, float]:
    """A new drafter, and what one token of its drafts costs, in target passes over one row; 0 for lookups.

    That is its `cost_ratio` where it has one, else the bytes of the weights it loads over the target's: a pass over one
    row takes as long as reading them.

    Raises:
        InvalidParameter: what `make_drafter` refuses.
    """
    num_bytes = 0

    def load(name: str, dtype: str | None = None) -> LoadedModel:
        nonlocal num_bytes
        found = services.load(name, dtype)
        num_bytes += num_parameters(found.model.config) * _BYTES.get(dtype or services.dtype, 2)
        return found

    drafter = make_drafter(method, replace(services, load=load), **options)
    said = getattr(drafter, "cost_ratio", None)
    if said is not None or not num_bytes:
        return drafter, said or 0.0
    return drafter, num_bytes / (num_parameters(services.target.model.config) * _BYTES.get(services.dtype, 2))


def num_parameters(config: ModelConfig) -> int:
    """Weights of a model, a tied output head counted once."""
    return sum(prod(shape) for shape in tensor_shapes(config).values())
