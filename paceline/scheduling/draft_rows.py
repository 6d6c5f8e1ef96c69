"""`Demand`: the rows that the drafts of a step's decodes can use, and their fair division.

Pure numbers: rows and pages are granted in `step.py`, and how many nodes pay is decided in `paceline/speculation`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.scheduling.request import RequestState
from paceline.speculation.policies import LengthPolicy
from paceline.speculation.records import BatchStats


@dataclass(slots=True)
class Demand:
    """What the drafts of some decodes can use, in their order.

    Attributes:
        wanted: nodes that the length policy asked for; 0 where a request does not draft.
        nodes: nodes among them that the draft can use; `share` reduces them.
        levels: most levels, so that no draft is deeper than the tokens that its request may still emit.
    """

    wanted: list[int]
    nodes: list[int]
    levels: list[int]

    @classmethod
    def of(cls, decodes: Sequence[RequestState], length: LengthPolicy, branches: bool, batch: BatchStats) -> "Demand":
        """The demand of `decodes` by the policy `length`; with `branches` drafts may have more nodes than levels."""
        wanted = _wanted(decodes, length, batch)
        if not any(wanted):
            return cls(wanted, wanted, wanted)
        levels = [min(n, request.num_output_left - 1) for request, n in zip(decodes, wanted, strict=True)]
        nodes = [n if depth > 0 and branches else depth for n, depth in zip(wanted, levels, strict=True)]
        return cls(wanted, nodes, levels)

    def share(self, rows: int) -> None:
        """Reduce the nodes to a fair share of `rows` (max-min fairness): the smallest demands are met first."""
        if sum(self.nodes) <= rows:
            return
        asking = [place for place, nodes in enumerate(self.nodes) if nodes]
        asking.sort(key=self.nodes.__getitem__)
        for still_asking, place in zip(range(len(asking), 0, -1), asking, strict=True):
            self.nodes[place] = min(self.nodes[place], -(-rows // still_asking))  # earlier ones get the remainder
            rows -= self.nodes[place]


def _wanted(decodes: Sequence[RequestState], length: LengthPolicy, batch: BatchStats) -> list[int]:
    drafting = [request for request in decodes if request.drafts]
    if not drafting:
        return [0] * len(decodes)
    budgets = length.budgets([request.draft_stats for request in drafting], batch)
    wanted = [request.draft_budget(nodes) for request, nodes in zip(drafting, budgets, strict=True)]
    if len(drafting) == len(decodes):
        return wanted
    given = iter(wanted)
    return [next(given) if request.drafts else 0 for request in decodes]
