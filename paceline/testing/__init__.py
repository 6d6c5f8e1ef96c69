"""Conformance checks for your own drafter: `check_drafter` in one call, `DrafterConformance` as a pytest class.

    from paceline.testing import check_drafter
    check_drafter(MyDrafter)

Not for this project's proofs in rational arithmetic, which are in ``tests/exact``, nor for your model and settings: use
``paceline audit``.
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
