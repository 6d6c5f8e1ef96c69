"""Draws a `Chart` or a `HeatMap` into a file; the only module that uses matplotlib.

matplotlib belongs to the extra `paceline[plots]` and is imported only when something is drawn. Not the place for
deciding what to draw (`curves.py`, `heat_map.py`).
"""

from pathlib import Path
from typing import Any

from paceline.disk import check_file
from paceline.errors import InvalidParameter
from paceline.extras import install
from paceline.theory.curves import Chart
from paceline.theory.heat_map import HeatMap

FORMATS = (".png", ".svg", ".pdf")


def draw(chart: Chart | HeatMap, path: str | Path) -> Path:
    """Draw `chart` into `path` (.png, .svg or .pdf) and return it.

    Raises:
        InvalidParameter: matplotlib is not installed, the format is unknown or `path` cannot be written.
    """
    path = check_drawable(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    if isinstance(chart, HeatMap):
        _draw_cells(figure, axes, chart)
    else:
        _draw_curves(axes, chart)
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    figure.savefig(path, dpi=150)
    return path


def check_drawable(path: str | Path, field: str = "path") -> Path:
    """`path`, where something can be drawn into it. Raises InvalidParameter as `draw` does, naming it `field`."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InvalidParameter(field, f"cannot write {path.name!r}", f"end the name in {', '.join(FORMATS)}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        remedy = f"run {install('plots')}"
        raise InvalidParameter("matplotlib", "is not installed, and plots need it", remedy) from None
    return check_file(field, path)


def _draw_curves(axes: Any, chart: Chart) -> None:
    for series in chart.series:
        is_dotted = chart.discrete or series.loose or len(series.x) == 1  # a line through one point cannot be seen
        marker, style = "." if is_dotted else None, "" if series.loose else "-"
        (line,) = axes.plot(series.x, series.y, marker=marker, linestyle=style, label=series.label)
        if series.band is not None:
            low, high = zip(*series.band, strict=True)
            axes.fill_between(series.x, low, high, color=line.get_color(), alpha=0.15)
        if series.marked:
            at = list(series.marked)
            axes.scatter([series.x[i] for i in at], [series.y[i] for i in at], color=line.get_color(), zorder=3)
    if chart.doubling:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_cells(figure: Any, axes: Any, heat: HeatMap) -> None:
    """Blue above zero, red below, white at zero; cells without a value are grey."""
    most = max((abs(value) for row in heat.values for value in row if value == value), default=0.0) or 1.0
    axes.set_facecolor("lightgrey")
    image = axes.imshow(heat.values, origin="lower", cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    axes.set_xticks(range(len(heat.columns)), heat.columns, rotation=45 if max(map(len, heat.columns)) > 5 else 0)
    axes.set_yticks(range(len(heat.rows)), heat.rows)
    figure.colorbar(image, label=heat.value_label)
