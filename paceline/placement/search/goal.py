"""`Goal`: what a search maximises where models differ in weight, or have a least attainment each.

Without either, every request in time counts 1, and there is no goal beside that.
"""

import numpy as np

from paceline.placement.case import Case


class Goal:
    """The worth of requests in time: their models' weights, after all floors.

    One more request of a model that is below its floor is worth more than everything that is no matter of floors, so
    plans that miss fewer requests there go first, whatever the weights.

    Args:
        case: its models' weights and floors.
        requests_of: int64 [models], requests for each.
    """

    def __init__(self, case: Case, requests_of: np.ndarray) -> None:
        self._weights = np.array([model.weight for model in case.models])
        self._least = np.ceil(np.array([model.floor for model in case.models]) * requests_of - 1e-9)
        self._dominant = 1.0 + float(self._weights @ requests_of)
        self.most = self.worth(requests_of)
        """Of all requests in time."""

    @classmethod
    def of(cls, case: Case, requests_of: np.ndarray) -> "Goal | None":
        """None where all models weigh 1 and none has a floor."""
        if all(model.weight == 1.0 and model.floor == 0.0 for model in case.models):
            return None
        return cls(case, requests_of)

    def worth(self, served: np.ndarray) -> float:
        """Of int64 [models] requests in time."""
        return float(self._weights @ served + self._dominant * np.minimum(served, self._least).sum())

    def urgency(self, served: np.ndarray, unserved: np.ndarray) -> np.ndarray:
        """What a greedy step orders models by, float64 [models]: the worth of requests that are not in time yet."""
        missed = np.maximum(self._least - served, 0.0)
        return self._weights * unserved + self._dominant * missed
