"""`DrafterTraits`: static properties of a drafter, declared by the drafter for engine, scheduler and policies.

Not for proposals (`drafters/`) or their acceptance (`records.py`).
"""

from dataclasses import dataclass

from paceline.errors import InvalidParameter

DEFAULT_NUM_DRAFT_TOKENS = 8
"""Most nodes per request and step, for drafters that name no `natural_budget`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterTraits:
    """Properties of one drafter, the same for every request.

    Attributes:
        branches: its trees may branch, i.e. need not be chains.
        whole: its drafts must not be shortened, only taken or left: trees of a fixed shape, and drafters that end their
            drafts by their own confidence.
        cost_ratio: cost of one draft step (a level of a tree) over that of a one-row target pass. 0 for lookups, whose
            cost does not depend on depth.
        natural_budget: largest number of nodes of a draft when the user names none.
        deterministic: proposals are always chosen deterministically, never drawn.
        remembers: proposals for one request may depend on the texts of other requests.
        chooses: it decides itself which of several draft methods pays (`drafters.base.ChoosingDrafter`), so that their
            costs need not be known elsewhere.
        estimates: its trees carry acceptance probabilities, and list nodes in descending order of these.
        watches: it needs the target's most probable token at every proposed node (`RequestOutcome.picks`).
        at_once: greedy chains are drafted in one call and paid for in full, so a budget larger than needed costs time.
        prefers_coupled: it drafts better or faster with the target's noise, so that requests without a seed are judged
            by the coupled rule, too.
        reads: it has a model with its own KV cache, which must be filled with a request's text before the first draft.
        taps: layers whose hidden states it needs for every committed token, as in `CausalLM.forward`.
        verified_early: a device may begin to verify a draft before the host knows it.
        prompt_lookup: longest and shortest n-gram, and whether the earliest occurrence counts, of a drafter that makes
            nothing but such lookups: a device can make them itself (`LooksUp`).
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
    prefers_coupled: bool = False
    reads: bool = False
    taps: tuple[int, ...] = ()
    verified_early: bool = False
    prompt_lookup: tuple[int, int, bool] | None = None

    def __post_init__(self) -> None:
        if not self.cost_ratio >= 0:
            raise InvalidParameter("cost_ratio", f"{self.cost_ratio} is not 0 or more", "give 0 for a lookup, or more")
        if self.natural_budget < 1:
            raise InvalidParameter("natural_budget", f"{self.natural_budget} is less than 1", "give at least 1")

    @property
    def is_lookup(self) -> bool:
        """Whether drafting needs no model passes."""
        return self.cost_ratio == 0
