"""Helpers of the simulators that use the real scheduler: requests whose tokens are all 0, and mean contexts.

Not for requests of one pass each (`simulator/`), which need no scheduler.
"""

from collections.abc import Sequence

from paceline.errors import InvalidParameter
from paceline.scheduling import Grant, RequestState, SchedulerConfig
from paceline.types import SamplingParams


def simulated_request(index: int, prompt_tokens: int, output_tokens: int, arrival: float = 0.0) -> RequestState:
    """A request that arrives at `arrival` seconds and generates exactly `output_tokens` tokens."""
    params = SamplingParams(max_tokens=output_tokens, ignore_eos=True)
    return RequestState(str(index), [0] * prompt_tokens, params, arrival_time=arrival)


def context_per_row(grants: Sequence[Grant]) -> float:
    """Mean over rows of the number of tokens before their chunk or draft; 0 without rows."""
    return sum(grant.num_rows * grant.start for grant in grants) / max(1, sum(grant.num_rows for grant in grants))


def refuse_prefix_caching(config: SchedulerConfig) -> None:
    """Raise InvalidParameter if prefix caching is on: simulated prompts would always hit, as their tokens are equal."""
    if config.prefix_caching:
        raise InvalidParameter("prefix_caching", "all simulated tokens are equal", "switch it off")
