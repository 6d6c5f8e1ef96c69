"""Scheduling: requests, cache pages, step plans and scheduling policies.

No tensor library and no clock: the same code runs in an engine and in a simulator.
"""

from paceline.scheduling.batch import Commit, Grant, StepPlan, StepResult
from paceline.scheduling.config import SchedulerConfig
from paceline.scheduling.pages import PagePool
from paceline.scheduling.request import RequestState, Status
from paceline.scheduling.scheduler import Scheduler
from paceline.scheduling.stop import StopChecker

__all__ = [
    "Commit",
    "Grant",
    "PagePool",
    "RequestState",
    "Scheduler",
    "SchedulerConfig",
    "Status",
    "StepPlan",
    "StepResult",
    "StopChecker",
]
