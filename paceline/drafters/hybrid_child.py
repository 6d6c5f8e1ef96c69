"""`Child`: one drafter among several of a hybrid, with its price, and how it is made from what a user writes.

Not the place for choosing among them (`hybrid.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from paceline.drafters.base import Drafter
from paceline.drafters.priced import make_priced
from paceline.drafters.registry import option_names
from paceline.drafters.services import DraftServices
from paceline.errors import InvalidParameter


@runtime_checkable
class Scored(Protocol):
    """What a drafter has besides `Drafter` when it estimates its own proposals."""

    def expected_accepted(self, request_id: str) -> float:
        """Tokens of the latest proposal for a request that are likely to stand."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Child:
    """One of the drafters.

    Attributes:
        drafter: proposes.
        cost_ratio: one drafted token over one target pass; 0 for drafters that only look things up.

    Raises:
        InvalidParameter: a negative price, or a drafter that must watch the target verify its own rows.
    """

    drafter: Drafter
    cost_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.cost_ratio < 0:
            raise InvalidParameter("cost_ratio", f"{self.cost_ratio} is negative", "give 0 or more")
        if hasattr(self.drafter, "watch"):
            problem = f"{self.drafter.name!r} must see the target's picks for all rows it proposes"
            raise InvalidParameter("drafters", problem, "use it alone")

    def score(self, request_id: str) -> float | None:
        """Its own estimate of its latest proposal, None when it makes none."""
        return self.drafter.expected_accepted(request_id) if isinstance(self.drafter, Scored) else None


def make_child(
    services: DraftServices, wanted: str | Mapping[str, Any], model: str | None, dtype: str | None = None
) -> Child:
    """The drafter that `wanted` describes.

    Args:
        wanted: its name, or a mapping with ``method``, its own options, and perhaps ``cost_ratio`` in place of what
            `make_priced` finds.
        model, dtype: for a drafter that takes one and names none.

    Raises:
        InvalidParameter: no ``method``, or what `make_drafter` and `Child` refuse.
    """
    options: dict[str, Any] = {"method": wanted} if isinstance(wanted, str) else dict(wanted)
    if "method" not in options:
        raise InvalidParameter("drafters", f"{options} has no method", "write e.g. {'method': 'suffix'}")
    method, cost_ratio = options.pop("method"), options.pop("cost_ratio", None)
    for name, value in (("model", model), ("dtype", dtype)):
        if value is not None and name in option_names(method):
            options.setdefault(name, value)
    drafter, price = make_priced(method, services, options)
    return Child(drafter, price if cost_ratio is None else cost_ratio)
