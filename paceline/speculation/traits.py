"""`DrafterTraits`: what everybody else must know of a drafter, declared once by the drafter itself.

Not for what a drafter proposes (`drafters/`) or for what its proposals turned out to be worth (`records.py`).
"""

from dataclasses import dataclass

from paceline.errors import InvalidParameter

DEFAULT_NUM_DRAFT_TOKENS = 8
"""Most nodes per request and step, for drafters that name no `natural_budget`."""


@dataclass(frozen=True, slots=True)
class DrafterTraits:
    """Properties of one drafter, the same for every request.

    Attributes:
        branches: its trees may be more than chains.
        whole: shortening a draft only loses, so that each is taken or left: trees of a fixed shape, and drafters that
            end their drafts where their own confidence does.
        cost_ratio: one draft step (a level of a tree) over one target pass of one row. 0 for lookups, whose drafts cost
            the same however deep they are.
        natural_budget: most nodes of a draft when the user names no number.
        deterministic: proposals are chosen and never drawn, whatever the request.
        remembers: proposals for one request may depend on the texts of other requests.
        chooses: it weighs for itself which of several ways to draft pays (`drafters.base.ChoosingDrafter`), so that
            nobody else need know what they cost.
        estimates: its trees say how likely each node is to be accepted, and come with their most likely nodes first.
        watches: it is told the target's most probable token at every node it proposed.
        at_once: greedy chains are drafted whole, in one call, and paid for whole, so that asking for more tokens than
            will be wanted costs something.
        reads: it has a model with keys and values of its own, which must read a request's text before the first draft.
        taps: hidden states of the target that it is told of every committed token, as of `CausalLM.forward`.
    """

    branches: bool = False
    whole: bool = False
    cost_ratio: float = 0.0
    natural_budget: int = DEFAULT_NUM_DRAFT_TOKENS
    deterministic: bool = False
    remembers: bool = False
    chooses: bool = False
    estimates: bool = False
    watches: bool = False
    at_once: bool = False
    reads: bool = False
    taps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.cost_ratio >= 0:
            raise InvalidParameter("cost_ratio", f"{self.cost_ratio} is not 0 or more", "give 0 for a lookup, or more")
        if self.natural_budget < 1:
            raise InvalidParameter("natural_budget", f"{self.natural_budget} is less than 1", "give at least 1")

    @property
    def is_lookup(self) -> bool:
        """Whether drafts cost no passes of a model."""
        return self.cost_ratio == 0
