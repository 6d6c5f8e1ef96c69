"""`Drafting`: a drafter for the planner, and the cost of a generated request with it, by the drafter's place.

The simulator has requests of one pass only. A generated request is modelled as a single one, with all its passes in
a row. This keeps the work of every stage and the latency of a lone request, but does not model passes of several
requests that interleave or share a batch (`serving_simulator.py` does, for one model). Choosing places is
`coplacement.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from paceline.errors import InvalidParameter
from paceline.placement.profile import ModelProfile, ParallelConfig, Stages
from paceline.theory.acceptance import expected_tokens
from paceline.theory.checks import check_cost, check_count, check_positive, check_rate

Place = Literal["plain", "together", "apart"]
"""Place of a drafter: none (plain decoding), on the devices of the target's first stage, or on a stage before it."""

PLACES: tuple[Place, ...] = get_args(Place)


@dataclass(frozen=True, slots=True)
class Drafting:
    """How a target is drafted for. Its profile then has seconds of a pass, the drafter's seconds of a draft token.

    Args:
        profile_type: key of the drafter's profile.
        output_tokens: mean output tokens of a request.
        acceptance_rate: alpha, in [0, 1].
        num_draft_tokens: number of drafted tokens per target pass.
        verify_ratio: t(num_draft_tokens + 1) / t(1), times of target passes by rows.
        hand_over: seconds per pass to send tokens between drafter and target on different devices, both ways.
        path: of the drafter's weights, for clusters started from the plan; "" if unknown.

    Raises:
        InvalidParameter: a number outside its range.
    """

    profile_type: str
    output_tokens: float
    acceptance_rate: float
    num_draft_tokens: int = 4
    verify_ratio: float = 1.0
    hand_over: float = 0.0
    path: str = ""

    def __post_init__(self) -> None:
        check_positive("draft.output_tokens", self.output_tokens)
        check_rate("draft.acceptance_rate", self.acceptance_rate)
        check_count("draft.num_draft_tokens", self.num_draft_tokens, least=1)
        check_cost("draft.hand_over", self.hand_over)
        if not 1 <= self.verify_ratio < float("inf"):
            problem = f"{self.verify_ratio} is not 1 or more"
            raise InvalidParameter("draft.verify_ratio", problem, "give t(k + 1) / t(1), 1 when rows cost nothing")

    @property
    def passes(self) -> float:
        """Target passes of a request: output tokens over expected tokens per pass (Leviathan et al. 2023)."""
        return self.output_tokens / float(expected_tokens(self.acceptance_rate, self.num_draft_tokens))

    def speculation(self, place: Place, given: str | Mapping[str, Any] | None) -> str | Mapping[str, Any] | None:
        """The speculative configuration of an engine with the drafter in that place; None if unknown.

        Args:
            given: the configuration of the model in the case, e.g. with a head; it takes precedence unless plain.
        """
        if place == "plain":
            return "none"
        if given is not None or not self.path:
            return given
        return {"method": "draft_model", "model": self.path, "num_draft_tokens": self.num_draft_tokens}


def request_profile(
    name: str, target: ModelProfile, draft: ModelProfile, drafting: Drafting, place: Place
) -> ModelProfile:
    """A profile with the seconds per stage of a whole request, for every split of `target`.

    With ``together``, every device of the first stage has the drafter's weights, and drafts before it verifies. With
    ``apart``, the drafter is a further stage before the target's, with the same tensor degree: drafting overlaps with
    verifying other requests, never the same one. `hand_over` is work of the drafter's stage. Batches are dropped.

    Raises:
        InvalidParameter: the drafter has no profile for a target's tensor degree, nor for one device.
    """
    entries: dict[ParallelConfig, Stages] = {}
    for split, stages in target.entries.items():
        if place == "plain":
            entries[split] = Stages(_times(stages.latency, drafting.output_tokens), stages.weight_mem)
            continue
        seconds, size = _drafter(draft, split.tensor)
        drafts = drafting.passes * drafting.num_draft_tokens * seconds
        verifies = _times(stages.latency, drafting.passes * drafting.verify_ratio)
        if place == "together":
            first_mem = stages.weight_mem[0] + size
            entries[split] = Stages((drafts + verifies[0], *verifies[1:]), (first_mem, *stages.weight_mem[1:]))
        else:
            latency = (drafts + drafting.passes * drafting.hand_over, *verifies)
            wider = ParallelConfig(split.tensor, split.pipeline + 1)
            entries[wider] = Stages(latency, (size, *stages.weight_mem))
    return ModelProfile(name, entries)


def check_drafts(drafts: Mapping[int, Drafting], num_models: int, profiles: Mapping[str, ModelProfile]) -> None:
    """Raise InvalidParameter for drafts of models that do not exist, or with drafters that have no profile."""
    for model, drafting in drafts.items():
        if not 0 <= model < num_models:
            raise InvalidParameter("draft", f"for model {model}, there are {num_models}", "use indices from 0")
        if drafting.profile_type not in profiles:
            problem = f"no profile for type {drafting.profile_type!r}"
            raise InvalidParameter("draft.type", problem, f"profile it, or use one of {sorted(profiles)}")


def _times(latency: tuple[float, ...], factor: float) -> tuple[float, ...]:
    return tuple(seconds * factor for seconds in latency)


def _drafter(draft: ModelProfile, tensor: int) -> tuple[float, float]:
    """(seconds of a draft token, bytes per device), at the target's tensor degree if profiled, else of one device."""
    width = ParallelConfig(tensor, 1)
    stages = draft.stages(width if width in draft.entries else ParallelConfig(1, 1))
    return stages.latency[0], stages.weight_mem[0]
