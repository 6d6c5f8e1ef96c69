"""Searching for a placement: the paper's policies (AlpaServe, arXiv 2302.11665), baselines, and an annealing search.

Every policy is a function of a `Search`, which scores placements, keeps the best and stops when time is up.
"""

from paceline.placement.search.planner import Plan, plan
from paceline.placement.search.policies import NAMES, POLICIES

__all__ = ["NAMES", "POLICIES", "Plan", "plan"]
