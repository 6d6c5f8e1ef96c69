"""Selective replication: single devices, no model parallelism, models replicated where the simulator says it helps."""

from paceline.errors import InvalidParameter
from paceline.placement.profile import ParallelConfig
from paceline.placement.search.fast import fast_greedy
from paceline.placement.search.greedy import beam_greedy
from paceline.placement.search.search import Groups, Search, empty_groups


def single_devices(search: Search) -> Groups:
    """One empty group per device. Raises InvalidParameter when no model fits a single device."""
    alone = ParallelConfig(1, 1)
    if alone not in search.facts.splits:
        remedy = "use a policy with model parallelism, or give more memory"
        raise InvalidParameter("policy", "no model can be served from a single device of this cluster", remedy)
    return empty_groups([alone] * search.facts.num_devices)


def replicate(search: Search) -> Groups:
    """Selective replication with the fast greedy selection."""
    return fast_greedy(search, single_devices(search))


def replicate_by_beam(search: Search) -> Groups:
    """Selective replication with every addition simulated (Algorithm 1)."""
    return beam_greedy(search, single_devices(search), search.beam_width)
