"""Output of a bench: markdown tables with a verdict, a JSON object, and an HTML page with plots."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import isnan
from typing import Any

from paceline.evaluation import html
from paceline.evaluation.bench.record import Measurement
from paceline.evaluation.bench.summary import ALL, NO_CAUSE, ArmSummary, Table
from paceline.evaluation.report import without_cause
from paceline.evaluation.stats import Interval

HEADER = (
    "arm", "decoding", "95 %", "verdict", "end to end", "tok/s", "tokens/pass", "acceptance", "draft share",
    "first token (s)", "same text",
)  # fmt: skip


TAILS = ("first token, 95 % (s)", "per token, 95 % (ms)")
"""Further columns of an open loop: 95th percentiles over the answers."""


def header_of(table: Table) -> tuple[str, ...]:
    """Names of the columns of `rows_of`."""
    tails = () if table.rate is None else TAILS
    return (*HEADER, *tails, *(name for name, _, _ in _more(table)))


def rows_of(table: Table) -> list[list[str]]:
    """The rows under `header_of`; unknown values are a dash."""
    return [
        [
            one.arm, _number(one.decode.ratio), _range(one.decode), one.verdict, _number(one.whole.ratio),
            f"{one.tokens_per_second:.1f}", _number(one.tokens_per_pass), _number(one.acceptance),
            _share(one.draft_share), f"{one.first_token_seconds:.3f}", f"{one.identical}/{one.num_cells}",
            *_tails(one, table), *(shown(getattr(one, field)) for _, field, shown in _more(table)),
        ]
        for one in table.arms
    ]  # fmt: skip


def _more(table: Table) -> list[tuple[str, str, Callable[[float | None], str]]]:
    """(header, field, formatter) of the optional columns for which some arm has a value."""
    columns = (
        ("in time", "in_time", _share),
        ("in time a second", "goodput", _number),
        ("J/token", "joules_per_token", _number),
    )
    return [each for each in columns if any(getattr(one, each[1]) is not None for one in table.arms)]


def _tails(one: ArmSummary, table: Table) -> list[str]:
    return [] if table.rate is None else [f"{one.first_token_95:.3f}", f"{1e3 * one.per_token_95:.1f}"]


def title_of(table: Table) -> str:
    """The title of a table: family, temperature, and concurrency or rate."""
    at_once = f", {table.concurrency} requests at once" if table.concurrency > 1 else ""
    if table.rate is not None:
        at_once = f", {table.rate:g} requests a second"
    family = "all prompts" if table.family == ALL else table.family
    return f"{family}, temperature {table.temperature:g}{at_once}"


def verdict_of(table: Table) -> str:
    """A line that says whether speculation pays, or why that is unknown."""
    drafting = [one for one in table.arms if one.verdict not in ("baseline", "the baseline again: noise")]
    floor = table.noise_floor
    noise = "" if floor is None else f" Plain decoding against itself is within {100 * floor:.1f} % of 1 (noise)."
    if table.differs_from_itself:
        noise = (
            f" Plain decoding differs from itself by up to {100 * (floor or 0):.1f} %: no smaller difference counts."
        )
    if table.noise is not None:
        return f"NOISY: {table.noise}. No verdict; run it longer, or on a quiet machine."
    if not drafting:
        return "Nothing was compared with plain decoding." + noise
    measured = [one for one in drafting if one.decode.num_prompts]
    if not measured:
        return "Nothing was measured: no answer went on after its first token."
    best = max(measured, key=lambda one: one.decode.ratio)
    text = f"{best.identical} of {best.num_cells} answers are plain decoding's, word for word."
    if best.decode.lacking:
        return f"{best.arm} {_times(best.decode)}; {best.decode.lacking} for an interval. {text}{noise}"
    if best.verdict == NO_CAUSE:
        return f"{without_cause(best.decode.ratio)} Measure again on an idle machine. {text}{noise}"
    if best.verdict == "faster":
        return f"Speculation pays: {best.arm} {_times(best.decode)}. {text}{noise}"
    if best.verdict == "slower":
        return f"Do not speculate: the best, {best.arm}, {_times(best.decode)}. {text}{noise}"
    return f"No gain shown: the best, {best.arm}, {_times(best.decode)}. {text}{noise}"


def markdown(tables: Sequence[Table]) -> str:
    """All tables in markdown; those of all prompts have their verdict below."""
    parts = []
    for table in tables:
        header = header_of(table)
        lines = ("---" if name in ("arm", "verdict") else "---:" for name in header)
        head = f"| {' | '.join(header)} |\n|{'|'.join(lines)}|"
        body = "\n".join("| " + " | ".join(row) + " |" for row in rows_of(table))
        parts.append(f"**{title_of(table)}**\n\n{head}\n{body}\n")
        if table.family == ALL:
            parts.append(verdict_of(table) + "\n")
    return "\n".join(parts)


def as_json(tables: Sequence[Table], **more: Any) -> dict[str, Any]:
    """The JSON object: the arms of the first table, all tables under ``tables``, and `more`."""
    first = tables[0]
    return {
        "arms": {one.arm: _arm(one) for one in first.arms},
        "noise_floor": first.noise_floor,
        "verdict": verdict_of(first),
        "tables": [
            {
                "family": table.family,
                "temperature": table.temperature,
                "concurrency": table.concurrency,
                "rate": table.rate,
                "noise_floor": table.noise_floor,
                "arms": {one.arm: _arm(one) for one in table.arms},
            }
            for table in tables
        ],
        **more,
    }


def page(title: str, tables: Sequence[Table], measurements: Sequence[Measurement], more: dict[str, Any]) -> str:
    """An HTML page: verdict, tables, and plots of ratios, acceptance by position, draft shares and drift."""
    sections = [html.paragraph(verdict_of(tables[0]), "verdict"), html.paragraph(_READING, "note")]
    for table in tables:
        sections.append(html.heading(title_of(table)))
        sections.append(html.table(header_of(table), rows_of(table)))
        forest = [
            (one.arm, one.decode.ratio, one.decode.low, one.decode.high)
            for one in table.arms
            if one.arm != one.base and one.decode.num_prompts
        ]
        sections.append(html.forest(forest, "Tokens per second of decoding over plain decoding, with 95 % intervals"))
    sections += _plots(tables, measurements)
    sections.append(html.heading("Where this comes from"))
    sections.append(html.table(("", ""), [(name, value) for name, value in more.items() if name != "tables"]))
    return html.page(title, sections, as_json(tables, **more))


_READING = (
    "Every prompt was answered by all arms before the next one began. A ratio above 1 is faster than the baseline; its "
    "interval comes from how much it changes when one prompt is left out. The baseline again is the baseline measured "
    "a second time: what it differs from 1 by is the machine's noise."
)


def _plots(tables: Sequence[Table], measurements: Sequence[Measurement]) -> list[str]:
    first = tables[0]
    drafting = [one for one in first.arms if one.positions]
    sections = []
    if drafting:
        curves = [
            (one.arm, range(1, len(one.positions) + 1), [p.conditional for p in one.positions]) for one in drafting
        ]
        sections.append(html.heading("Acceptance by position in the draft"))
        sections.append(html.lines(curves, "Share accepted of the drafted tokens that were compared", "position"))
    shares = [(one.arm, one.draft_share) for one in first.arms if one.draft_share is not None]
    sections += [
        html.heading("Share of decoding time spent drafting"),
        html.bars(shares, "Drafting over all of decoding"),
    ]
    by_load = _by_concurrency(tables)
    if by_load:
        sections.append(html.heading("Speed-up by requests at once"))
        sections.append(html.lines(by_load, "Over plain decoding of as many requests", "requests at once"))
    drift = _drift(measurements, first)
    if drift:
        sections.append(html.heading("The machine while it was measured"))
        caption = "Tokens per second of the baseline, cell by cell, over its own mean: a slope or a step is drift"
        sections.append(html.lines([drift], caption, "cell"))
    return sections


def _by_concurrency(tables: Sequence[Table]) -> list[tuple[str, list[float], list[float]]]:
    alike = [table for table in tables if table.rate is None and table.temperature == tables[0].temperature]
    whole = [table for table in alike if table.family == ALL]
    if len(whole) < 2:
        return []
    sizes = [float(table.concurrency) for table in whole]
    ratios = {
        one.arm: [
            each.decode.ratio
            for table in whole
            for each in table.arms
            if each.arm == one.arm and each.decode.num_prompts
        ]
        for one in whole[0].arms
    }
    return [(arm, sizes, values) for arm, values in ratios.items() if len(values) == len(sizes)]


def _drift(measurements: Sequence[Measurement], table: Table) -> tuple[str, list[float], list[float]] | None:
    base = table.arms[0].base
    own = [
        m
        for m in measurements
        if m.arm == base and m.setting[1:] == (table.concurrency, table.rate or 0.0) and m.decoded_tokens
    ]
    rates = [one.decoded_tokens / one.decode_seconds for one in own]
    if len(rates) < 2:
        return None
    mean = sum(rates) / len(rates)
    return base, [float(i) for i in range(len(rates))], [rate / mean for rate in rates]


def _arm(one: ArmSummary) -> dict[str, Any]:
    return {
        "ratio": _known(one.decode.ratio), "low": one.decode.low, "high": one.decode.high,
        "end_to_end": _known(one.whole.ratio), "end_to_end_low": one.whole.low, "end_to_end_high": one.whole.high,
        "typical": _known(one.typical.ratio), "prompts": one.decode.num_prompts, "base": one.base,
        "tokens_per_second": one.tokens_per_second, "tokens_per_pass": one.tokens_per_pass,
        "acceptance_rate": one.acceptance, "draft_share": one.draft_share, "wasted": one.wasted,
        "first_token_seconds": one.first_token_seconds, "first_token_95": one.first_token_95,
        "per_token_95": one.per_token_95, "in_time": one.in_time, "goodput": one.goodput,
        "joules_per_token": one.joules_per_token,
        "positions": [asdict(position) for position in one.positions],
        "identical": one.identical == one.num_cells, "num_identical": one.identical, "num_answers": one.num_cells,
        "verdict": one.verdict,
    }  # fmt: skip


def _times(interval: Interval) -> str:
    return f"is {interval.ratio:.2f} times plain decoding{'' if interval.low is None else ' ' + _range(interval)}"


def _range(interval: Interval) -> str:
    return "-" if interval.low is None or interval.high is None else f"[{interval.low:.2f}, {interval.high:.2f}]"


def _known(ratio: float) -> float | None:
    """`ratio` for JSON: None instead of NaN."""
    return None if isnan(ratio) else ratio


def _number(value: float | None) -> str:
    return "-" if value is None or isnan(value) else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
