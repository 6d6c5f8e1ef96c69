"""`Speculation`: how an engine's drafts are made, how long they are, and how they are judged.

Not the place for drafters (`drafters/`), rules (`sampling/`) or length policies (`scheduling/length/`).
"""

from dataclasses import dataclass, field

from paceline.drafters.base import Drafter, WatchesTarget
from paceline.sampling import Verifier
from paceline.scheduling.length import LengthPolicy, StepObserver, StepRecord
from paceline.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Speculation:
    """How drafts are made and judged.

    Attributes:
        drafter: proposes.
        verifier: the rule, its options bound.
        coupled: draws share the target's noise (the coupled rule).
        length: how long drafts are, where the text cannot depend on it: greedy requests, and all under `coupled`.
        sampled_length: how long they are elsewhere.
        watcher: the drafter, when it wants to see the target's picks.
    """

    drafter: Drafter
    verifier: Verifier
    coupled: bool
    length: LengthPolicy
    sampled_length: LengthPolicy
    watcher: WatchesTarget | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "watcher", self.drafter if isinstance(self.drafter, WatchesTarget) else None)

    def length_for(self, params: SamplingParams) -> LengthPolicy:
        """The length policy of a request."""
        return self.length if self.coupled or params.is_greedy else self.sampled_length

    def observe_step(self, step: StepRecord) -> None:
        """Tell the policies that learn from steps."""
        for policy in {id(p): p for p in (self.length, self.sampled_length)}.values():
            if isinstance(policy, StepObserver):
                policy.observe_step(step)

    def promised_length(self, params: SamplingParams) -> int:
        """Nodes that a request may draft at every step whatever the load, so that its text is independent of it, or 0.

        The text of a sampled request depends on where its drafts end, unless the target's own noise picks its tokens.
        """
        if self.coupled or params.is_greedy:
            return 0
        return getattr(self.sampled_length, "promise", 0)
