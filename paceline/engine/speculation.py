"""`Speculation`: how an engine's drafts are made, how long they are, and how they are judged.

Not the place for drafters (`drafters/`), rules (`sampling/`) or length policies (`speculation/`).
"""

from dataclasses import dataclass

from paceline.drafters.base import Drafter
from paceline.sampling import Judge, Verifier, judge
from paceline.speculation import LengthPolicy


@dataclass(frozen=True, slots=True)
class Speculation:
    """How drafts are made and judged.

    Attributes:
        drafter: proposes.
        rule, verifier: the rule's name, and the rule with its options bound.
        policy: how long drafts are.
        most: most nodes of a draft; 0 is plain decoding.
    """

    drafter: Drafter
    rule: str
    verifier: Verifier
    policy: LengthPolicy
    most: int

    def judge_of(self, seed: int | None, number: int) -> Judge:
        """How the drafts of request number `number` are judged; see `sampling.judge`."""
        return judge(self.rule, self.verifier, seed, number)
