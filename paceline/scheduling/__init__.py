"""Who computes what next: requests, pages, step plans, scheduling and speculation-length policies.

No tensor library and no clock: the same code runs in an engine and in a simulator.
"""

from paceline.scheduling.batch import Commit, Grant, StepPlan, StepResult
from paceline.scheduling.config import SchedulerConfig
from paceline.scheduling.cost import CostProfile
from paceline.scheduling.length import Fixed, Goodput, Heuristic, LengthPolicy
from paceline.scheduling.pages import PagePool
from paceline.scheduling.request import RequestState, Status
from paceline.scheduling.scheduler import Scheduler
from paceline.scheduling.stats import BatchStats, DraftStats, PrefixStats
from paceline.scheduling.stop import StopChecker

__all__ = [
    "BatchStats",
    "Commit",
    "CostProfile",
    "DraftStats",
    "Fixed",
    "Goodput",
    "Grant",
    "Heuristic",
    "LengthPolicy",
    "PagePool",
    "PrefixStats",
    "RequestState",
    "Scheduler",
    "SchedulerConfig",
    "Status",
    "StepPlan",
    "StepResult",
    "StopChecker",
]
