"""`Speculation`: an engine's drafter, length policy and verification rule.

Not the place for drafters (`drafters/`), rules (`sampling/`) or length policies (`speculation/`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.drafters.base import Drafter
from paceline.errors import InvalidParameter
from paceline.sampling import AUTO, RULES, Judge, Verifier, judge, resolve
from paceline.scheduling.request import RequestState
from paceline.speculation import LengthPolicy
from paceline.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Speculation:
    """How drafts are made and verified.

    Attributes:
        drafter: proposes drafts.
        rule, verifier: the rule's name, and the rule with its options bound.
        policy: decides draft lengths.
        num_draft_tokens: largest number of nodes of a draft; 0 is plain decoding.
    """

    drafter: Drafter
    rule: str
    verifier: Verifier
    policy: LengthPolicy
    num_draft_tokens: int

    def judge_of(self, params: SamplingParams, number: int) -> Judge:
        """The judge of request number `number`: its own rule or the engine's; see `sampling.judge`.

        A request that asks for plain decoding is judged by ``auto``: lossy rules change a text without drafts, too.

        Raises:
            InvalidParameter: the request names a rule that is unknown, lossy, or unsuitable for this drafter.
        """
        own = _wishes(params)
        is_plain = params.speculative is False or own.get("method") == "none"
        rule = own.get("rule", AUTO if is_plain else self.rule)
        if rule == self.rule:
            return judge(rule, self.verifier, params.seed, number, self.drafter.traits.prefers_coupled)
        known = RULES.get(rule)
        if known is None or known.is_lossy or (known.judges_blocks and self.drafter.traits.branches):
            problem = f"{rule!r} {'is unknown' if known is None else 'cannot be chosen by a request'}"
            raise InvalidParameter("speculative.rule", problem, "use an exact rule: auto, p/q, coupled")
        return judge(rule, resolve(rule), params.seed, number, self.drafter.traits.prefers_coupled)

    def shape(self, params: SamplingParams, state: RequestState) -> None:
        """Copy a request's own drafting options (method, length, policy) into its scheduler state.

        Raises:
            InvalidParameter: the request names a drafter that is not loaded.
        """
        own = _wishes(params)
        method = own.get("method", self.drafter.name)
        if method not in (self.drafter.name, "auto", "none"):
            problem = f"{method!r} is not loaded, {self.drafter.name!r} is"
            raise InvalidParameter("speculative.method", problem, "leave it out, or use 'none'")
        state.drafts = params.speculative is not False and method != "none"
        state.most_drafts = own.get("num_draft_tokens")
        if own.get("policy") == "fixed":
            state.fixed_drafts = self.num_draft_tokens if state.most_drafts is None else state.most_drafts


def _wishes(params: SamplingParams) -> Mapping[str, Any]:
    return params.speculative if isinstance(params.speculative, Mapping) else {}
