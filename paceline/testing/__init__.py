"""What you run on a drafter of your own: `check_drafter` in one call, `DrafterConformance` as a pytest class.

    from paceline.testing import check_drafter
    check_drafter(MyDrafter)

Not for the house's own proofs over rationals, which are in ``tests/exact``, nor for your model and settings: that is
``paceline audit``'s.
"""

from paceline.sampling.enumeration import EnumeratedRandomness, law_of
from paceline.testing.checks import NotConforming
from paceline.testing.conformance import CHECKS, DrafterConformance, Report, check_drafter
from paceline.testing.table_model import TableModel, plain_law, run

__all__ = [
    "CHECKS",
    "DrafterConformance",
    "EnumeratedRandomness",
    "NotConforming",
    "Report",
    "TableModel",
    "check_drafter",
    "law_of",
    "plain_law",
    "run",
]
