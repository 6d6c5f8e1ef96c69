"""The conformance suite of drafters: all checks in one call, or as a pytest class.

Not a benchmark: a drafter that proposes nothing conforms, and the report says that it never drafted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.drafters.base import DraftContext, Drafter
from paceline.errors import InvalidParameter
from paceline.sampling import CounterRandomness, TokenTree, verify
from paceline.testing import checks
from paceline.testing.checks import GREEDY, Make
from paceline.testing.table_model import run

CHECKS: Mapping[str, Callable[[Make], None]] = {
    "shape": checks.check_shape,
    "budget": checks.check_budget,
    "max_depth": checks.check_max_depth,
    "randomness": checks.check_randomness,
    "token_ids": checks.check_token_ids,
    "batch": checks.check_batch,
    "release": checks.check_release,
    "memory": checks.check_memory,
    "preemption": checks.check_preemption,
    "law": checks.check_law,
    "greedy": checks.check_greedy,
    "coupled": checks.check_coupled,
}
"""Name of each check, as in `skip`, to the check."""

_NUM_TOKENS = 60


@dataclass(frozen=True, slots=True)
class Report:
    """Statistics of a conforming drafter over `num_tokens` tokens of a greedy toy target.

    Attributes:
        num_passes: number of target passes; equal to `num_tokens` if no draft was accepted.
        num_draft_tokens: number of proposed nodes.
    """

    num_tokens: int
    num_passes: int
    num_draft_tokens: int


def check_drafter(make: Make, skip: Sequence[str] = ()) -> Report:
    """Run the checks on drafters made by `make`.

    Args:
        make: returns a new drafter, e.g. its class.
        skip: names of checks to leave out, of `CHECKS`.

    Raises:
        NotConforming: a requirement is violated; the message says which, and what to do.
        InvalidParameter: an unknown name in `skip`.
    """
    unknown = next((name for name in skip if name not in CHECKS), None)
    if unknown is not None:
        raise InvalidParameter("skip", f"there is no check {unknown!r}", f"use some of {', '.join(CHECKS)}")
    for name, check in CHECKS.items():
        if name not in skip:
            check(make)
    counting = _Counting(make())
    run(GREEDY, counting, verify, CounterRandomness(0), _NUM_TOKENS, budget=5)
    return Report(_NUM_TOKENS, counting.num_passes, counting.num_nodes)


class DrafterConformance:
    """The suite as a pytest class: inherit, define `make_drafter`, and pytest runs one test per check.

    class TestMine(DrafterConformance):
        def make_drafter(self):
            return MyDrafter(max_tokens=3)
    """

    def make_drafter(self) -> Drafter:
        """Return a new drafter."""
        raise NotImplementedError("say how a drafter is made")


def _as_test(check: Callable[[Make], None]) -> Callable[[DrafterConformance], None]:
    def test(self: DrafterConformance) -> None:
        check(self.make_drafter)

    test.__doc__ = check.__doc__
    return test


for _name, _check in CHECKS.items():
    setattr(DrafterConformance, f"test_{_name}", _as_test(_check))


class _Counting:
    """Wraps a drafter and counts its calls and proposed nodes."""

    def __init__(self, inner: Drafter) -> None:
        self.name, self.traits, self._inner = inner.name, inner.traits, inner
        self.observe, self.release = inner.observe, inner.release
        self.num_passes = self.num_nodes = 0

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        trees = self._inner.propose(contexts)
        self.num_passes += len(trees)
        self.num_nodes += sum(map(len, trees))
        return trees
