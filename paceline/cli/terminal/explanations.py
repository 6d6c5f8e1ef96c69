"""How an explanation of a plan looks: one table per question."""

from collections.abc import Iterator
from math import isfinite

from rich.table import Table

from paceline.placement.explain import Explanation, Interference
from paceline.theory.heat_map import HeatMap

MOST_SHOWN = 12
"""Rows of the longer tables, those with the largest effect first; --json has them all."""


def explanation_tables(explanation: Explanation) -> Iterator[Table]:
    """Loads, losses, what choices buy, and interference; tables that would be empty are left out."""
    if explanation.groups:
        yield _groups(explanation)
        yield _models(explanation)
        yield _ablations(explanation)
    if any(any(row) for row in explanation.interference.attainment + explanation.interference.latency):
        yield _interference(explanation.interference)


def interference_map(found: Interference) -> HeatMap:
    """Heat map of the percentage points of attainment that each model would gain without each other one."""
    points = [[100 * value for value in row] for row in found.attainment]
    title = "What models that share groups cost each other"
    return HeatMap(title, "without this model", "this one would gain", "points", found.models, found.models, points)


def _groups(explanation: Explanation) -> Table:
    table = _table("groups: load, queue, burstiness", "group", "models")
    for name in ("split", "requests/s", "load", "wait (s)", "M/G/1 (s)", "CV together", "CV of its models", "in time"):
        table.add_column(name, justify="right")
    for g in explanation.groups:
        names = ", ".join(g.models)
        waits = (_number(g.simulated_wait), _number(g.estimated_wait))
        cvs = (_number(g.cv), _number(g.model_cv))
        split = f"{g.tensor} x {g.pipeline}"
        table.add_row(
            str(g.group), names, split, _number(g.rate), f"{g.load:.0%}", *waits, *cvs, _percent(g.attainment)
        )
    return table


def _models(explanation: Explanation) -> Table:
    table = _table("models: what their requests were lost to", "model")
    for name in ("requests/s", "CV", "devices' worth", "in time", "no replica", "too slow even alone", "queueing"):
        table.add_column(name, justify="right")
    for m in explanation.models:
        shares = (m.attainment, m.no_replica, m.too_slow, m.queueing)
        table.add_row(m.model, _number(m.rate), _number(m.cv), _number(m.load), *map(_percent, shares))
    return table


def _ablations(explanation: Explanation) -> Table:
    table = _table("what each choice buys: the plan against itself without it", "choice")
    for name in ("attainment (points)", "mean latency saved (s)"):
        table.add_column(name, justify="right")
    rows = [(f"{each.model} in group {each.group}", each) for each in explanation.replicas]
    rows += [(f"the split of group {each.group}, not {each.instead}", each) for each in explanation.splits]
    rows.sort(key=lambda row: (abs(row[1].attainment), abs(row[1].latency)), reverse=True)
    for name, ablation in rows[:MOST_SHOWN]:
        table.add_row(name, f"{100 * ablation.attainment:+.2f}", f"{ablation.latency:+.4f}")
    if len(rows) > MOST_SHOWN:
        table.caption = f"{len(rows) - MOST_SHOWN} smaller ones not shown"
    return table


def _interference(found: Interference) -> Table:
    """The strongest pairs: all of the matrix is in --json and --plot."""
    table = _table("interference: what a model suffers from another in its groups", "model", "suffers from")
    for name in ("in time", "alone in its groups", "loses (points)", "slower by (s)"):
        table.add_column(name, justify="right")
    pairs = [
        (found.attainment[i][j], found.latency[i][j], i, j)
        for i in range(len(found.models))
        for j in range(len(found.models))
        if isfinite(found.attainment[i][j]) and (found.attainment[i][j] or found.latency[i][j])
    ]
    pairs.sort(key=lambda pair: (abs(pair[0]), pair[1] if isfinite(pair[1]) else 0.0), reverse=True)
    for lost, slower, i, j in pairs[:MOST_SHOWN]:
        shares = (_percent(found.shared[i]), _percent(found.alone[i]))
        table.add_row(found.models[i], found.models[j], *shares, f"{100 * lost:+.2f}", _number(slower))
    if len(pairs) > MOST_SHOWN:
        table.caption = f"{len(pairs) - MOST_SHOWN} weaker pairs not shown"
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name)
    return table


def _number(value: float) -> str:
    return f"{value:.3g}" if isfinite(value) else "-"


def _percent(value: float) -> str:
    return f"{value:.1%}" if isfinite(value) else "-"
