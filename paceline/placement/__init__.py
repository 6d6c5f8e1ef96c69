"""Placement of many models on many devices: profiles, workloads, planners and simulators.

After AlpaServe (Li et al. 2023). No tensor library and no cluster runtime: plans are made here, `serving/` runs them.
"""

from paceline.placement.case import Case
from paceline.placement.case_file import read_case
from paceline.placement.cluster import Cluster
from paceline.placement.model import NO_SLO, PlacedModel
from paceline.placement.placement import Group, Placement, group_mem, validate
from paceline.placement.profile import ModelProfile, ParallelConfig, Stages
from paceline.placement.rules import ControllerRules
from paceline.placement.simulator import Evaluator, Score, SimulationResult, simulate
from paceline.placement.workload import Workload

__all__ = [
    "NO_SLO",
    "Case",
    "Cluster",
    "ControllerRules",
    "Evaluator",
    "Group",
    "ModelProfile",
    "ParallelConfig",
    "PlacedModel",
    "Placement",
    "Score",
    "SimulationResult",
    "Stages",
    "Workload",
    "group_mem",
    "read_case",
    "simulate",
    "validate",
]
