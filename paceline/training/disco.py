"""Training DISCO's classifier (Mamou et al. 2024): will the target accept this drafted token?

A logistic regression or a small network on `speculation.policies.disco.features`. Texts are split into three parts: the
classifier is fitted on one, its threshold maximises the modelled speed on the second, and both are evaluated on the
third. Not for collecting drafts (`training_jobs/draft_traces.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from paceline.errors import InvalidParameter
from paceline.speculation.policies.disco import Classifier, DraftTrace
from paceline.theory.oracle import best_fixed, oracle_lengths, rate_of

THRESHOLDS = tuple(i / 20 for i in range(20))
LEAST_TOKENS = 50
_EVERY = 4
"""Of every four texts one is held out, one serves to choose the threshold, and two are trained on."""


@dataclass(frozen=True, slots=True)
class DiscoReport:
    """Evaluation of the classifier on some drafts.

    Attributes:
        accuracy: share of tested tokens that are classified correctly at probability 1/2.
        base_rate: accuracy of always predicting the more frequent class.
        disco_rate, fixed_rate, oracle_rate: modelled tokens per second with lengths by the classifier, with the best
            fixed length, and with the best length of every draft (`theory.oracle`).
        fixed_length: the best fixed length, in tokens.
        num_drafts: number of drafts.
    """

    accuracy: float
    base_rate: float
    disco_rate: float
    fixed_rate: float
    oracle_rate: float
    fixed_length: int
    num_drafts: int


@dataclass(frozen=True, slots=True)
class DiscoReports:
    """Evaluations on the texts the classifier was fitted on, on those that chose its threshold, and on the rest."""

    trained: DiscoReport
    chosen: DiscoReport
    held_out: DiscoReport


def train(
    traces: Sequence[DraftTrace], step_seconds: Callable[[int], float], hidden: int = 8, seed: int = 0
) -> tuple[Classifier, DiscoReports]:
    """A classifier with its threshold, and its evaluation on each part of the texts; only `held_out` is unbiased.

    Args:
        traces: drafts of one length, from several texts (groups).
        step_seconds: maps a number of drafted tokens to the seconds of a step that drafts and verifies them.
        hidden: units of the one hidden layer; 0 is a logistic regression.
        seed: of the initial weights.

    Raises:
        InvalidParameter: too few texts or tested tokens.
    """
    held_out, chosen, trained = split(traces)
    judged = [sum(len(trace.tested[1]) for trace in part) for part in (held_out, chosen, trained)]
    if not (judged[0] and judged[1]) or judged[2] < LEAST_TOKENS:
        problem = f"{len({trace.group for trace in traces})} texts with {len(traces)} drafts are too few to learn from"
        raise InvalidParameter("prompts", problem, "give more (at least 3) or longer ones")
    classifier = fit(trained, hidden, seed)
    classifier = replace(classifier, threshold=best_threshold(classifier, chosen, step_seconds))
    reports = [report(classifier, part, step_seconds) for part in (trained, chosen, held_out)]
    return classifier, DiscoReports(*reports)


def split(traces: Sequence[DraftTrace]) -> tuple[list[DraftTrace], list[DraftTrace], list[DraftTrace]]:
    """(held out, for the threshold, for training): whole texts are assigned in turn."""
    parts: tuple[list[DraftTrace], ...] = ([], [], [])
    part_of = {group: min(i % _EVERY, 2) for i, group in enumerate(sorted({trace.group for trace in traces}))}
    for trace in traces:
        parts[part_of[trace.group]].append(trace)
    return parts[0], parts[1], parts[2]


def fit(traces: Sequence[DraftTrace], hidden: int = 8, seed: int = 0, rounds: int = 200) -> Classifier:
    """Minimise the cross entropy of the tested tokens with L-BFGS and a small L2 penalty."""
    import torch
    from torch import nn
    from torch.nn import functional

    x, y = _judged(traces)
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-6
    inputs = torch.from_numpy((x - mean) / scale)
    labels = torch.from_numpy(y.astype(np.float64))
    sizes = [x.shape[1], *([hidden] if hidden else []), 1]
    generator = torch.Generator().manual_seed(seed)
    linears = [nn.Linear(a, b, dtype=torch.float64) for a, b in pairwise(sizes)]
    for linear in linears:
        nn.init.normal_(linear.weight, std=linear.in_features**-0.5, generator=generator)
        nn.init.zeros_(linear.bias)
    model = nn.Sequential(*[part for linear in linears for part in (linear, nn.Tanh())][:-1])
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=rounds, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        penalty = sum((p * p).sum() for p in model.parameters()) / len(labels)
        value = functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], labels) + penalty
        value.backward()
        return value

    optimiser.step(loss)  # type: ignore[arg-type]
    layers = [(linear.weight.detach().numpy(), linear.bias.detach().numpy()) for linear in linears]
    return Classifier(mean.tolist(), scale.tolist(), layers)


def lengths_of(classifier: Classifier, threshold: float, traces: Sequence[DraftTrace]) -> list[int]:
    """Length of each draft with this threshold: drafting goes on while the latest token's probability reaches it."""
    lengths = []
    for trace in traces:
        goes_on = classifier(trace.features) >= threshold
        lengths.append(1 + (len(goes_on) if goes_on.all() else int(np.argmin(goes_on))))
    return lengths


def best_threshold(classifier: Classifier, traces: Sequence[DraftTrace], step_seconds: Callable[[int], float]) -> float:
    """The one of `THRESHOLDS` with the most modelled tokens per second."""
    runs = [trace.run for trace in traces]
    return max(THRESHOLDS, key=lambda tau: rate_of(runs, lengths_of(classifier, tau, traces), step_seconds))


def report(classifier: Classifier, traces: Sequence[DraftTrace], step_seconds: Callable[[int], float]) -> DiscoReport:
    """The evaluation of `classifier` on `traces`."""
    x, y = _judged(traces)
    runs = [trace.run for trace in traces]
    most = max(len(trace.features) for trace in traces) + 1
    length, fixed = best_fixed(runs, step_seconds, most)
    return DiscoReport(
        accuracy=float(((classifier(x) >= 0.5) == y).mean()),
        base_rate=float(max(y.mean(), 1 - y.mean())),
        disco_rate=rate_of(runs, lengths_of(classifier, classifier.threshold, traces), step_seconds),
        fixed_rate=fixed,
        oracle_rate=rate_of(runs, oracle_lengths(runs, step_seconds, most), step_seconds),
        fixed_length=length,
        num_drafts=len(traces),
    )


def _judged(traces: Sequence[DraftTrace]) -> tuple[np.ndarray, np.ndarray]:
    """Features [N, F] and labels [N] of every token that the target tested."""
    parts = [trace.tested for trace in traces]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
