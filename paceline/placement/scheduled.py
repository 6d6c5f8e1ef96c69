"""What the simulators that ask the real scheduler share: requests whose tokens are all 0, and what a pass reads.

Not for requests of one pass each (`simulator/`), which no scheduler splits into steps.
"""

from collections.abc import Sequence

from paceline.errors import InvalidParameter
from paceline.scheduling import Grant, RequestState, SchedulerConfig
from paceline.types import SamplingParams


def simulated_request(index: int, prompt_tokens: int, output_tokens: int, arrival: float = 0.0) -> RequestState:
    """A request that arrives after `arrival` seconds and is answered with exactly `output_tokens` tokens."""
    params = SamplingParams(max_tokens=output_tokens, ignore_eos=True)
    return RequestState(str(index), [0] * prompt_tokens, params, arrival_time=arrival)


def context_per_row(grants: Sequence[Grant]) -> float:
    """Tokens in the cache before a row's chunk or draft, on average over the rows; 0 without any."""
    return sum(grant.num_rows * grant.start for grant in grants) / max(1, sum(grant.num_rows for grant in grants))


def refuse_prefix_caching(config: SchedulerConfig) -> None:
    """Raise InvalidParameter where prompts would be found in the cache because all simulated tokens are equal."""
    if config.prefix_caching:
        raise InvalidParameter("prefix_caching", "all simulated tokens are equal", "switch it off")
