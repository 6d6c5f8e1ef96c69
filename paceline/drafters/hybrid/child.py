"""One of a hybrid's drafters with its prices, and its construction from the user's description.

Not the place for choosing the drafter of a step (`choice.py`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.drafters.base import Drafter
from paceline.drafters.registry import make_drafter, option_names
from paceline.drafters.services import DraftServices
from paceline.errors import InvalidParameter
from paceline.option_types import check_types
from paceline.speculation.outcome import StepOutcome
from paceline.speculation.prices import LearnedDraft, Prices
from paceline.speculation.records import BatchStats


class Child:
    """One of the drafters.

    Args:
        drafter: proposes.
        prices: of target passes.
        cost_ratio: cost of a drafted level over that of a target pass, overriding the drafter's own; 0 for lookups.

    Raises:
        InvalidParameter: a negative ratio, or a drafter with the trait `watches`.
    """

    def __init__(self, drafter: Drafter, prices: Prices, cost_ratio: float | None = None) -> None:
        traits = drafter.traits
        if traits.watches:
            problem = f"{drafter.name!r} must see the target's picks for all rows it proposes"
            raise InvalidParameter("drafters", problem, "use it alone")
        self.drafter = drafter
        self.traits = replace(traits, whole=False, cost_ratio=traits.cost_ratio if cost_ratio is None else cost_ratio)
        self._prices, self._drafts = prices, LearnedDraft(prices.target, self.traits)

    @property
    def is_free(self) -> bool:
        """Whether it is a lookup, without model passes."""
        return self.traits.is_lookup

    def draft_seconds(self, batch: BatchStats, longest: int) -> list[float]:
        """[longest + 1] seconds in which every request of `batch` drafts 0, 1, ... levels with this child."""
        size = max(1, batch.num_decodes)
        first, later = (self.draft_level(level, size, batch.mean_context) for level in (0, 1))
        return [0.0, *(first + later * level for level in range(longest))]

    def learn_price(self, depth: int, num_requests: int, seconds: float, context: float) -> None:
        """Learn that drafts of `depth` levels for `num_requests` requests took `seconds`."""
        self._drafts.observe(depth, num_requests, seconds, context)

    def target(self, rows: float, context: float = 0.0) -> float:
        """See `Prices`."""
        return self._prices.target(rows, context)

    def prompt_row(self) -> float:
        """See `Prices`."""
        return self._prices.prompt_row()

    def draft_level(self, level: int, num_requests: int, context: float = 0.0) -> float:
        """See `Prices`; the cost of lookups is neglected."""
        return 0.0 if self.is_free else self._drafts(level, num_requests, context)

    def reading(self, num_tokens: int) -> float:
        """See `Prices`."""
        return self._drafts.reading(num_tokens)

    def observe(self, step: StepOutcome) -> None:
        """Do nothing: the engine's prices learn passes, and `learn_price` drafts."""


def make_child(
    services: DraftServices, wanted: str | Mapping[str, Any], model: str | None, dtype: str | None = None
) -> Child:
    """The drafter that `wanted` describes.

    Args:
        wanted: its name, or a mapping with ``method``, its options, and optionally ``cost_ratio`` (see `Child`).
        model, dtype: defaults for a drafter with such options.

    Raises:
        InvalidParameter: no ``method``, or as `make_drafter` and `Child`.
    """
    if not isinstance(wanted, str | Mapping):
        raise InvalidParameter("drafters", f"{wanted!r} is no drafter", "give names, or mappings with a method")
    options: dict[str, Any] = {"method": wanted} if isinstance(wanted, str) else dict(wanted)
    if "method" not in options:
        raise InvalidParameter("drafters", f"{options} has no method", "write e.g. {'method': 'suffix'}")
    method, cost_ratio = options.pop("method"), options.pop("cost_ratio", None)
    check_types(Child, {"cost_ratio": cost_ratio})
    for name, value in (("model", model), ("dtype", dtype)):
        if value is not None and name in option_names(method):
            options.setdefault(name, value)
    return Child(make_drafter(method, services, **options), services.prices, cost_ratio)
