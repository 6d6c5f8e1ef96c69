"""Scheduling policies, one file each: in which order requests are served, and with how many rows.

To add one, add a file and a line in `_POLICIES`. Limits of rows and pages are enforced by `scheduling/step.py`.
"""

from typing import Protocol

from paceline.errors import InvalidParameter
from paceline.scheduling.policies.orca import Orca
from paceline.scheduling.policies.request_level import RequestLevel
from paceline.scheduling.policies.sarathi import Sarathi
from paceline.scheduling.policies.stall_free import StallFree
from paceline.scheduling.step import StepBuilder


class Policy(Protocol):
    """Fills a step with decodes and prefill chunks; drafts are then given the rows that it left."""

    def fill(self, step: StepBuilder) -> None:
        """Request decodes, chunks and admissions from `step`."""
        ...


_POLICIES: dict[str, type[Policy]] = {
    "stall_free": StallFree,
    "orca": Orca,
    "sarathi": Sarathi,
    "request_level": RequestLevel,
}


def make_policy(name: str) -> Policy:
    """The policy called `name`.

    Raises:
        InvalidParameter: no such policy; lists the known ones.
    """
    if name not in _POLICIES:
        raise InvalidParameter("policy", f"{name!r} is unknown", f"use one of {', '.join(_POLICIES)}")
    return _POLICIES[name]()
