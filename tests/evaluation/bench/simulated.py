"""Arms that answer by arithmetic: true rates that are known, and a machine that drifts and jitters."""

import numpy as np

from paceline.evaluation.bench.arms import Answer, Cell

TOKENS = 101


class Machine:
    """Virtual seconds: lognormal jitter for every answer, a speed that wanders slowly, and disturbances that last.

    A disturbance keeps six tenths of its size from answer to answer: half of it is gone after 1.4 answers.
    """

    def __init__(self, seed: int, jitter: float = 0.03, drift: float = 0.01, lasting: float = 0.0) -> None:
        self.rng, self.jitter, self.drift, self.speed = np.random.default_rng(seed), jitter, drift, 0.0
        self.lasting, self.disturbance = lasting, 0.0

    def seconds(self, ideal: float) -> float:
        self.speed += self.drift * self.rng.standard_normal()
        self.disturbance = 0.6 * self.disturbance + 0.8 * self.lasting * self.rng.standard_normal()
        slower = self.speed + self.disturbance + self.jitter * self.rng.standard_normal()
        return ideal * float(np.exp(slower))


class SimulatedArm:
    """`speedup` times as fast as plain decoding on average; prompts differ by `spread`."""

    def __init__(self, machine: Machine, label: str, speedup: float = 1.0, spread: float = 0.0, says: str = "same"):
        self.label, self.base, self.machine, self.is_here = label, "plain", machine, True
        self.speedup, self.spread, self.says = speedup, spread, says
        self.begun: list[int] = []
        self.asked: list[int] = []

    def begin(self, round_number: int) -> None:
        self.begun.append(round_number)

    def answer(self, cell: Cell) -> tuple[float, list[Answer]]:
        self.asked.append(cell.number)
        own = self.speedup * np.exp(self.spread * np.random.default_rng([7, cell.number]).standard_normal())
        answers = []
        for _ in cell.prompts:
            decoding = self.machine.seconds(1.0 / own)
            answers.append(Answer(TOKENS, self.says, 0.1, 0.1 + decoding))
        return max(answer.seconds for answer in answers), answers


def arms(seed: int = 0, speedup: float = 1.0, spread: float = 0.0, **machine: float) -> list[SimulatedArm]:
    """Plain decoding twice, and an arm called ``fast``."""
    shared = Machine(seed, **machine)
    return [
        SimulatedArm(shared, "plain"),
        SimulatedArm(shared, "plain (again)"),
        SimulatedArm(shared, "fast", speedup, spread),
    ]


def cells(count: int, families: int = 1) -> list[Cell]:
    """Cells of one prompt each, families in turns."""
    return [Cell(i, (f"prompt {i}",), f"family {i % families}") for i in range(count)]
