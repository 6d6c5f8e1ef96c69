"""Scheduling policies, one file each; a policy says in which order and with how many rows requests are asked.

Adding one is a file and a line here. What fits is known to `scheduling/step.py`.
"""

from typing import Protocol

from paceline.errors import InvalidParameter
from paceline.scheduling.policies.orca import Orca
from paceline.scheduling.policies.request_level import RequestLevel
from paceline.scheduling.policies.sarathi import Sarathi
from paceline.scheduling.policies.stall_free import StallFree
from paceline.scheduling.step import StepBuilder


class Policy(Protocol):
    """Fills a step with decodes and prefill chunks; drafts are spread over the rows it leaves."""

    def fill(self, step: StepBuilder) -> None:
        """Ask `step` for decodes, chunks and admissions."""
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
