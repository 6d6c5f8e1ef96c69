"""`Disco`: a small trained classifier decides whether to draft another token.

Mamou et al. 2024 (DISCO). Inference only, in numpy; `paceline.training.disco` trains the classifier.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from paceline.errors import InvalidParameter
from paceline.speculation.policies.base import DraftLaw, LengthPolicy, check_least, check_share
from paceline.speculation.records import BatchStats, DraftStats, PrefixStats

TOP_K = 5
FEATURES = (*(f"prob_{i}" for i in range(1, TOP_K + 1)), "entropy", "position", "survival")
"""Features of the law that a drafted token came from: its largest probabilities, its entropy in nats, the token's index
in the draft (from 0), and the product of the largest probabilities of the laws before it."""
FORMAT, VERSION = "paceline-disco", 1
_REMEDY = "train one with `paceline train disco`"


def features(draft_laws: Sequence[DraftLaw]) -> np.ndarray:
    """[len(FEATURES)] features of the latest of `draft_laws`; they do not depend on drawn tokens."""
    probs = np.asarray(draft_laws[-1].probs, np.float64)
    top = np.zeros(TOP_K)
    largest = np.sort(probs if len(probs) <= TOP_K else np.partition(probs, -TOP_K)[-TOP_K:])[::-1]
    top[: len(largest)] = largest
    entropy = -float(probs @ np.log(probs))
    survival = float(np.prod([float(law.probs.max()) for law in draft_laws[:-1]]))
    return np.array([*top, entropy, len(draft_laws) - 1, survival])


@dataclass(frozen=True, eq=False, slots=True)
class DraftTrace:
    """One draft and its outcome, as a training example.

    Attributes:
        features: [n, F] of its first n tokens, all but the last, after which the policy is never asked.
        run: number of accepted tokens.
        group: the text it came from; drafts of one text are held out together.
    """

    features: np.ndarray
    run: int
    group: int = 0

    @property
    def tested(self) -> tuple[np.ndarray, np.ndarray]:
        """(features, accepted) of the tokens that the target verified, up to and including the first rejected one."""
        judged = min(self.run + 1, len(self.features))
        return self.features[:judged], np.arange(judged) < self.run


@dataclass(frozen=True)
class Classifier:
    """Probability that the target accepts a drafted token, given that all before it were accepted, from `features`.

    Attributes:
        mean, scale: [F], to standardise features.
        layers: (weights [out, in], biases [out]) each, with tanh in between; one layer is a logistic regression.
        threshold: probability from which drafting continues; chosen on held-out drafts.
        about: provenance of the classifier, for display.
    """

    mean: Sequence[float]
    scale: Sequence[float]
    layers: Sequence[tuple[Any, Any]]
    threshold: float = 0.5
    about: str = ""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Acceptance probabilities [...] of features [..., F]."""
        mean, scale, layers = self._arrays
        x = (x - mean) / scale
        for number, (weights, biases) in enumerate(layers):
            x = x @ weights.T + biases
            if number + 1 < len(layers):
                x = np.tanh(x)
        return 1 / (1 + np.exp(-np.clip(x[..., 0], -40, 40)))

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        layers = [(np.asarray(w, np.float64), np.asarray(b, np.float64)) for w, b in self.layers]
        return np.asarray(self.mean, np.float64), np.asarray(self.scale, np.float64), layers

    def write(self, path: Path) -> None:
        """Store it as JSON."""
        mean, scale, layers = self._arrays
        values = {
            "format": FORMAT, "version": VERSION, "features": FEATURES, "about": self.about,
            "threshold": self.threshold, "mean": mean.tolist(), "scale": scale.tolist(),
            "layers": [[w.tolist(), b.tolist()] for w, b in layers],
        }  # fmt: skip
        path.write_text(json.dumps(values) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Classifier":
        """The classifier stored at `path`.

        Raises:
            InvalidParameter: the file cannot be read, or is not a classifier of this version and these features.
        """
        try:
            values = json.loads(path.read_text())
            if (values["format"], values["version"], tuple(values["features"])) != (FORMAT, VERSION, FEATURES):
                raise ValueError("another format, version or set of features")
            names = ("mean", "scale", "layers", "threshold", "about")
            classifier = cls(**{name: values[name] for name in names})
            if not classifier.layers or classifier(np.zeros(len(FEATURES))).shape:
                raise ValueError("its layers do not end in one chance")
        except OSError as error:
            raise InvalidParameter("classifier", f"{path} cannot be read: {error.strerror}", _REMEDY) from error
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise InvalidParameter("classifier", f"{path} is no classifier ({error})", _REMEDY) from error
        return classifier


@dataclass(frozen=True, slots=True)
class Disco(LengthPolicy):
    """Draft while the acceptance probability of the latest token is at least the threshold, before each next draw.

    Attributes:
        classifier: trained for this pair of target and draft.
        num_draft_tokens: longest draft.
        threshold: overrides the classifier's own.
    """

    classifier: Classifier
    num_draft_tokens: int = 8
    threshold: float | None = None

    asks_beliefs: ClassVar[bool] = True
    asks_laws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_least("num_draft_tokens", self.num_draft_tokens, 0)
        if self.threshold is not None:
            check_share("threshold", self.threshold)

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """Always `num_draft_tokens`."""
        return [self.num_draft_tokens] * len(requests)

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """Whether the classifier's probability for the latest law is at least the threshold."""
        threshold = self.classifier.threshold if self.threshold is None else self.threshold
        return bool(self.classifier(features(draft_laws)) >= threshold)
