"""Event-exact simulation of a placement: fast enough to be the inner loop of a search."""

from paceline.placement.rules import ControllerRules
from paceline.placement.simulator.evaluator import (
    ComponentOutcome,
    Evaluator,
    Tally,
    components,
    simulate,
)
from paceline.placement.simulator.result import Score, SimulationResult

__all__ = [
    "ComponentOutcome",
    "ControllerRules",
    "Evaluator",
    "Score",
    "SimulationResult",
    "Tally",
    "components",
    "simulate",
]
