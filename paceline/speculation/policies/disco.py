"""`Disco`: a small trained classifier says whether the next drafted token is still worth drawing.

Mamou et al. 2024 (DISCO). Only its use is here; it is trained by `paceline.training.disco`. numpy only.
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
"""Of the law a drafted token came from: largest probabilities, entropy in nats, place in the draft (from 0), and the
product of the largest probabilities of all tokens before it."""
FORMAT, VERSION = "paceline-disco", 1
_REMEDY = "train one with `paceline train disco`"


def features(draft_laws: Sequence[DraftLaw]) -> np.ndarray:
    """[len(FEATURES)] of the latest of `draft_laws`; never of a token."""
    probs = np.asarray(draft_laws[-1].probs, np.float64)
    top = np.zeros(TOP_K)
    largest = np.sort(probs if len(probs) <= TOP_K else np.partition(probs, -TOP_K)[-TOP_K:])[::-1]
    top[: len(largest)] = largest
    entropy = -float(probs @ np.log(probs))
    survival = float(np.prod([float(law.probs.max()) for law in draft_laws[:-1]]))
    return np.array([*top, entropy, len(draft_laws) - 1, survival])


@dataclass(frozen=True, eq=False, slots=True)
class DraftTrace:
    """One draft and its fate, to train on.

    Attributes:
        features: [n, F] of its first n tokens, n one less than it had: the last one is never asked about.
        run: how many of its tokens were accepted.
        group: drafts of one text belong together when some are held out.
    """

    features: np.ndarray
    run: int
    group: int = 0

    @property
    def tested(self) -> tuple[np.ndarray, np.ndarray]:
        """(features, accepted) of the tokens the target judged: those after the first refused one are not known."""
        judged = min(self.run + 1, len(self.features))
        return self.features[:judged], np.arange(judged) < self.run


@dataclass(frozen=True)
class Classifier:
    """The chance that the target accepts a drafted token, all before it accepted, from `features`.

    Attributes:
        mean, scale: [F], to standardise features.
        layers: (weights [out, in], biases [out]) each; one layer is a logistic regression, tanh lies between several.
        threshold: keep drafting from this chance on; chosen on held-out drafts.
        about: where it came from, for people.
    """

    mean: Sequence[float]
    scale: Sequence[float]
    layers: Sequence[tuple[Any, Any]]
    threshold: float = 0.5
    about: str = ""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Chances [...] of features [..., F]."""
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
            InvalidParameter: no such file, or not a classifier of this version and these features.
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
    """Draft while `classifier` gives the latest token at least its threshold; decided before the next draw.

    Attributes:
        classifier: trained for this pair of target and draft.
        max_length: longest draft.
        threshold: replaces the classifier's own.
    """

    classifier: Classifier
    max_length: int = 8
    threshold: float | None = None

    asks_beliefs: ClassVar[bool] = True
    asks_laws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_least("max_length", self.max_length, 0)
        if self.threshold is not None:
            check_share("threshold", self.threshold)

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """Always `max_length`."""
        return [self.max_length] * len(requests)

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """By the law of the latest token, whatever that token is."""
        threshold = self.classifier.threshold if self.threshold is None else self.threshold
        return bool(self.classifier(features(draft_laws)) >= threshold)
